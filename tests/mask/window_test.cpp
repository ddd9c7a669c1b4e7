// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();

TEST(Full, ShowsEverything) {
  for (const auto& [rows, columns] : testing::sizes) {
    expect_visible(masks::full(rows, columns), [](auto, auto) { return true; });
  }
}

TEST(Causal, IsBottomRightAligned) {
  for (const auto& [rows, columns] : testing::sizes) {
    const std::int64_t past = columns - rows;
    expect_visible(masks::causal(rows, columns), [past](auto i, auto j) { return j <= i + past; });
  }
}

TEST(SlidingWindow, SeesItsLastKeysOnly) {
  for (const auto& [rows, columns] : testing::sizes) {
    for (const std::int64_t w : {std::int64_t{1}, std::int64_t{3}, std::int64_t{40}, far}) {
      const std::int64_t past = columns - rows;
      expect_visible(masks::sliding_window(rows, columns, w),
                     [past, w](auto i, auto j) { return j <= i + past && i + past - j < w; });
    }
  }
}

TEST(SlidingWindow, RefusesAWindowThatSeesNothing) {
  EXPECT_EQ(refusal([] { masks::sliding_window(4, 4, 0); }),
            "sliding_window: window is 0; give the number of columns that a row sees, itself included (>= 1)");
}

TEST(Window, SeesNeighboursOnBothSides) {
  for (const auto& [rows, columns] : testing::sizes) {
    for (const auto& [left, right] : {std::pair{0, 0}, {2, 1}, {0, 30}, {90, 90}}) {
      const std::int64_t past = columns - rows;
      expect_visible(masks::window(rows, columns, left, right),
                     [past, l = left, r = right](auto i, auto j) { return i + past - l <= j && j <= i + past + r; });
    }
  }
}

TEST(Window, HasNoLimitWhereNoneIsGiven) {
  for (const auto& [rows, columns] : testing::sizes) {
    const std::int64_t past = columns - rows;
    expect_visible(masks::window(rows, columns, {}, 2), [past](auto i, auto j) { return j <= i + past + 2; });
    expect_visible(masks::window(rows, columns, 2, {}), [past](auto i, auto j) { return j >= i + past - 2; });
    expect_visible(masks::window(rows, columns, far, far), [](auto, auto) { return true; });
  }
}

TEST(Window, RefusesNegativeNeighbours) {
  EXPECT_EQ(refusal([] { masks::window(4, 4, -1, 0); }),
            "window: left is -1; give the number of columns on that side of self (>= 0), or nothing for no limit");
  EXPECT_EQ(refusal([] { masks::window(4, 4, 0, -2); }),
            "window: right is -2; give the number of columns on that side of self (>= 0), or nothing for no limit");
}

TEST(Builders, RefuseSizesThat32BitsCannotCount) {
  EXPECT_EQ(refusal([] { masks::causal(std::int64_t{1} << 31, 4); }),
            "causal: rows is 2,147,483,648; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  EXPECT_EQ(refusal([] { masks::full(4, -1); }), "full: columns is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
