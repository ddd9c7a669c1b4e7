// SPDX-License-Identifier: Apache-2.0
#include "flashmask/interval_mask.h"

#include "mask/visibility.h"
#include "memory_sanitizers.h"

namespace flashmask {
namespace {

using testing::refusal;

IntervalMask one_column(std::int64_t rows, Interval a, Interval b) {
  IntervalMask mask({.batch = 1, .heads = 1, .rows = rows, .columns = 1});
  mask.set(0, a, b);
  return mask;
}

TEST(IntervalMask, IsVisibleEverywhereUntilSet) {
  const IntervalMask mask({.batch = 2, .heads = 3, .rows = 4, .columns = 5});
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(mask.first(i), Interval{});
    EXPECT_EQ(mask.second(i), Interval{});
  }
}

TEST(IntervalMask, ColumnsAreInnermost) {
  IntervalMask mask({.batch = 2, .heads = 3, .rows = 4, .columns = 5});
  mask.set(mask.index(1, 2, 3), {1, 2}, {});
  EXPECT_EQ(mask.index(1, 2, 3), 28U);
  EXPECT_EQ(mask.first_begin()[28], 1);
  EXPECT_EQ(mask.first_end()[28], 2);
  EXPECT_FALSE(mask.visible(1, 2, 1, 3));
  EXPECT_TRUE(mask.visible(1, 2, 2, 3));
  EXPECT_TRUE(mask.visible(1, 1, 1, 3));
}

TEST(IntervalMask, RefusesAColumnThatItLacks) {
  IntervalMask mask({.batch = 2, .heads = 1, .rows = 4, .columns = 4});
  const std::string text = refusal([&] { mask.set(1000, {0, 1}, {}); });
  EXPECT_NE(text.find("index is 1,000 but the mask has 8 columns"), std::string::npos) << text;
  refusal([&] { mask.set(8, {0, 1}, {}); });
  mask.set(7, {0, 1}, {});
}

TEST(IntervalMask, ForWhichThereIsNoMemoryIsAnErrorWithItsBytes) {
  if (kSanitizerAllocates) GTEST_SKIP() << "a sanitizer ends a program that asks for so much";
  const MaskShape shape{.batch = 1 << 13, .heads = 1 << 13, .rows = 64, .columns = 1 << 30};
  try {
    const IntervalMask mask(shape);
    ADD_FAILURE() << "there is memory for it";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("288,230,376,151,711,744 bytes"), std::string::npos) << error.what();
  }
}

TEST(IntervalMask, KeepsSeparateRangesInAscendingOrder) {
  const IntervalMask mask = one_column(10, {7, 9}, {2, 4});
  EXPECT_EQ(mask.first(0), (Interval{2, 4}));
  EXPECT_EQ(mask.second(0), (Interval{7, 9}));
}

TEST(IntervalMask, MergesRangesThatTouch) {
  const IntervalMask mask = one_column(10, {4, 9}, {2, 4});
  EXPECT_EQ(mask.first(0), (Interval{2, 9}));
  EXPECT_EQ(mask.second(0), Interval{});
}

TEST(IntervalMask, PutsAnEmptyRangeLast) {
  const IntervalMask mask = one_column(10, {6, 6}, {2, 4});
  EXPECT_EQ(mask.first(0), (Interval{2, 4}));
  EXPECT_EQ(mask.second(0), Interval{});
}

bool contains(Interval range, std::int32_t row) { return range.begin <= row && row < range.end; }

void expect_union(const IntervalMask& mask, Interval a, Interval b) {
  for (std::int32_t row = 0; row < mask.shape().rows; ++row) {
    ASSERT_EQ(mask.visible(0, 0, row, 0), !contains(a, row) && !contains(b, row)) << "row " << row;
  }
}

bool is_normal(const IntervalMask& mask) {
  const Interval first = mask.first(0);
  const Interval second = mask.second(0);
  const auto legal = [&mask](Interval range) {
    return range == Interval{} || (0 <= range.begin && range.begin < range.end && range.end <= mask.shape().rows);
  };
  return legal(first) && legal(second) && (second.empty() || (!first.empty() && first.end < second.begin));
}

TEST(IntervalMask, MasksTheUnionOfAnyTwoRangesAndKeepsTheNormalForm) {
  for (int code = 0; code < 9 * 9 * 9 * 9; ++code) {
    const auto bound = [code](int power) { return code / power % 9 - 2; };
    const Interval a{bound(1), bound(9)};
    const Interval b{bound(81), bound(729)};
    const IntervalMask mask = one_column(5, a, b);
    ASSERT_NO_FATAL_FAILURE(expect_union(mask, a, b)) << "code " << code;
    ASSERT_TRUE(is_normal(mask)) << "code " << code;
  }
}

TEST(IntervalMask, TakesSixteenBytesAColumn) {
  EXPECT_EQ(IntervalMask({.batch = 2, .heads = 3, .rows = 400, .columns = 5}).memory_bytes(), 480U);
}

TEST(IntervalMask, RefusesShapesThatCannotBeCounted) {
  EXPECT_EQ(refusal([] { IntervalMask({.batch = 1, .heads = 1, .rows = std::int64_t{1} << 31, .columns = 1}); }),
            "IntervalMask: shape.rows is 2,147,483,648; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  EXPECT_EQ(refusal([] { IntervalMask({.batch = 1, .heads = -1, .rows = 1, .columns = 1}); }),
            "IntervalMask: shape.heads is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  constexpr std::int64_t huge = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(
      refusal([] { IntervalMask({.batch = 1, .heads = huge, .rows = 1, .columns = huge}); }, Status::out_of_memory),
      "IntervalMask: more than 144,115,188,075,855,871 elements, which no memory holds; give smaller sizes");
}

}  // namespace
}  // namespace flashmask
