// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;
using Positions = std::vector<std::int64_t>;

TEST(DilatedWindow, SeesEveryDilationthColumnOnEitherSide) {
  for (const auto& [rows, columns] : testing::sizes) {
    for (const std::int64_t dilation : {1, 2, 5, 64, 200}) {
      const Mask mask = masks::dilated_window(rows, columns, 4, 2, dilation);
      expect_visible(mask, [&, shift = columns - rows](auto i, auto j) {
        const std::int64_t offset = j - (i + shift);
        return offset % dilation == 0 && -4 * dilation <= offset && offset <= 2 * dilation;
      });
    }
  }
}

TEST(DilatedWindow, OfDilationOneIsAWindow) {
  EXPECT_EQ(expand(masks::dilated_window(70, 97, 9, 3, 1)), expand(masks::window(70, 97, 9, 3)));
}

TEST(DilatedWindow, ReachesAsFarAsTheMaskWhateverTheNumbers) {
  const std::int64_t huge = INT64_MAX;
  expect_visible(masks::dilated_window(65, 70, huge, huge, 3), [](auto i, auto j) { return (j - i - 5) % 3 == 0; });
  expect_visible(masks::dilated_window(65, 65, huge, huge, huge), [](auto i, auto j) { return i == j; });
}

TEST(DilatedWindow, RefusesNegativeNeighboursAndADilationBelowOne) {
  EXPECT_EQ(refusal([] { masks::dilated_window(9, 9, -1, 0, 2); }),
            "dilated_window: left is -1; give the number of columns on that side of self (>= 0)");
  EXPECT_EQ(refusal([] { masks::dilated_window(9, 9, 0, -3, 2); }),
            "dilated_window: right is -3; give the number of columns on that side of self (>= 0)");
  EXPECT_EQ(refusal([] { masks::dilated_window(9, 9, 1, 1, 0); }),
            "dilated_window: dilation is 0; give the distance between two columns that a row sees (>= 1)");
  EXPECT_EQ(refusal([] { masks::dilated_window(9, -9, 1, 1, 1); }),
            "dilated_window: columns is -9; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

TEST(GlobalTokens, SeeAndAreSeenByAllWhereverTheyAre) {
  for (const std::int64_t tokens : {1, 10, 65, 200}) {
    const Positions globals = {tokens - 1, tokens / 2, 0, tokens / 2, tokens / 3};
    const auto is_global = [&](std::int64_t t) { return std::ranges::find(globals, t) != globals.end(); };
    expect_visible(masks::global_tokens(tokens, globals, 3, 1),
                   [&](auto i, auto j) { return is_global(i) || is_global(j) || (i - 3 <= j && j <= i + 1); });
  }
}

TEST(GlobalTokens, AtTheStartAreAGlobalSlidingWindow) {
  EXPECT_EQ(expand(masks::global_tokens(97, Positions{1, 0, 2}, 7, 4)),
            expand(masks::global_sliding_window(97, 3, 7, 4)));
}

TEST(GlobalTokens, LeaveAWindowWhereThereAreNone) {
  EXPECT_EQ(expand(masks::global_tokens(97, {}, 7, INT64_MAX)), expand(masks::window(97, 97, 7, {})));
}

TEST(GlobalTokens, RefusePositionsOutsideTheSequence) {
  EXPECT_EQ(refusal([] {
              masks::global_tokens(10, Positions{3, 10}, 1, 1);
            }),
            "global_tokens: positions[1] is 10; give a token from 0 to below 10");
  EXPECT_EQ(refusal([] { masks::global_tokens(10, Positions{-1}, 1, 1); }),
            "global_tokens: positions[0] is -1; give a token from 0 to below 10");
}

}  // namespace
}  // namespace flashmask
