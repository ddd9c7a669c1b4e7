// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "flashmask/startend_row_indices.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

/// Scores that are visible with probability 3/4: hardly a column fits two ranges.
Mask noise(std::mt19937_64& random, const MaskShape& shape) {
  std::vector<std::uint8_t> scores(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns));
  for (std::uint8_t& score : scores) score = random() % 4 != 0;
  return from_dense(shape, scores);
}

/// Two ranges a column, in any order, short enough that many stay apart.
Mask random_ranges(std::mt19937_64& random, const MaskShape& shape) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.batch * shape.heads * shape.columns * 4));
  for (std::size_t i = 0; i < values.size(); i += 2) {
    values[i] = static_cast<std::int32_t>(testing::draw(random, -2, shape.rows + 2));
    values[i + 1] = static_cast<std::int32_t>(values[i] + testing::draw(random, -1, shape.rows / 4));
  }
  return from_startend_row_indices(values, shape, 4, false);
}

void expect_and_or(const Mask& a, const Mask& b) {
  const auto at = [](const Mask& mask, std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j) {
    return mask.visible(mask.shape().batch == 1 ? 0 : batch, mask.shape().heads == 1 ? 0 : head, i, j);
  };
  const Mask both = a & b;
  const Mask either = a | b;
  for (std::int64_t n = 0; n < both.shape().batch; ++n) {
    for (std::int64_t h = 0; h < both.shape().heads; ++h) {
      expect_visible(
          both, [&](auto i, auto j) { return at(a, n, h, i, j) && at(b, n, h, i, j); }, n, h);
      expect_visible(
          either, [&](auto i, auto j) { return at(a, n, h, i, j) || at(b, n, h, i, j); }, n, h);
    }
  }
}

TEST(MaskAlgebra, IsElementWiseOnRandomRanges) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 100; ++trial) {
    const MaskShape shape{.batch = 1, .heads = 1, .rows = testing::draw(random, 0, 24), .columns = 9};
    expect_and_or(random_ranges(random, shape), random_ranges(random, shape));
  }
}

TEST(MaskAlgebra, IsElementWiseOnMasksThatFitNoIntervals) {
  std::mt19937_64 random(2);
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 30, .columns = 20};
  const Mask a = noise(random, shape);
  const Mask b = noise(random, shape);
  ASSERT_TRUE(find_misfit(a));
  expect_and_or(a, b);
  expect_and_or(a, random_ranges(random, shape));
  expect_and_or(random_ranges(random, shape), (a & b) | random_ranges(random, shape));
}

TEST(MaskAlgebra, BroadcastsBatchAndHeads) {
  std::mt19937_64 random(3);
  const auto shape = [](std::int64_t batch, std::int64_t heads) { return MaskShape{batch, heads, 7, 5}; };
  expect_and_or(random_ranges(random, shape(3, 1)), random_ranges(random, shape(1, 2)));
  expect_and_or(random_ranges(random, shape(1, 1)), random_ranges(random, shape(3, 2)));
  expect_and_or(noise(random, shape(3, 2)), random_ranges(random, shape(3, 1)));
}

TEST(MaskAlgebra, HoldsTheIntervalFormWhereItFits) {
  const std::vector<std::int64_t> lengths = {9, 11, 4};
  const Mask mask = masks::window(24, 24, 5, 2) & masks::document(lengths, 24);
  ASSERT_EQ(lower(mask).form(), MaskForm::intervals);
  EXPECT_EQ(&lower(mask).intervals(), &mask.lowered().intervals());
}

/// Visible rectangles and noise: cells of every kind.
Mask patches(std::mt19937_64& random, std::int64_t n) {
  std::vector<std::uint8_t> scores(static_cast<std::size_t>(n * n));
  for (int patch = 0; patch < 5; ++patch) {
    const std::int64_t top = testing::draw(random, 0, n - 1), left = testing::draw(random, 0, n - 1);
    const std::int64_t size = testing::draw(random, 1, n), every = testing::draw(random, 1, 2);
    for (std::int64_t i = top; i < std::min(n, top + size); ++i) {
      for (std::int64_t j = left; j < std::min(n, left + size); j += every)
        scores[static_cast<std::size_t>(i * n + j)] = 1;
    }
  }
  return from_dense({.batch = 1, .heads = 1, .rows = n, .columns = n}, scores);
}

/// Compares scores and, since equal masks must cost the same whatever made them, bits.
void expect_equal(const Mask& a, const Mask& b) {
  EXPECT_EQ(expand(a), expand(b)) << a.description() << " and " << b.description();
  EXPECT_EQ(lower(a, MaskForm::bits).bits(), lower(b, MaskForm::bits).bits())
      << a.description() << " and " << b.description();
}

TEST(MaskAlgebra, ObeysTheLawsOfSets) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 30; ++trial) {
    const std::int64_t n = testing::draw(random, 1, 200);
    const MaskShape shape{.batch = 1, .heads = 1, .rows = n, .columns = n};
    const Mask a = patches(random, n), b = patches(random, n), c = random_ranges(random, shape);
    const Mask all = masks::full(n, n), none = ~all;
    expect_equal(a & b, b & a);
    expect_equal(a | c, c | a);
    expect_equal((a & b) & c, a & (b & c));
    expect_equal((a | b) | c, a | (b | c));
    expect_equal(a & (b | c), (a & b) | (a & c));
    expect_equal(~(a & c), ~a | ~c);
    expect_equal(~(a | b), ~a & ~b);
    expect_equal(~~a, a);
    expect_equal(~~c, c);
    expect_equal(a & ~a, none);
    expect_equal(c | ~c, all);
    expect_equal(a & all, a);
    expect_equal(a | none, a);
  }
}

TEST(MaskAlgebra, ComplementIsElementWiseAndStaysIntervalsWhereItFits) {
  const Mask causal = masks::causal(70, 90), later = ~causal;
  EXPECT_EQ(later.lowered().form(), MaskForm::intervals);
  expect_visible(later, [](auto i, auto j) { return j > i + 20; });
  const Mask window = masks::window(70, 70, 3, 3), rest = ~window;
  EXPECT_EQ(rest.lowered().form(), MaskForm::intervals);
  expect_visible(rest, [](auto i, auto j) { return j < i - 3 || j > i + 3; });
  EXPECT_EQ(rest.description(), "~" + window.description());
}

std::int64_t masked_ranges(const std::vector<std::uint8_t>& column) {
  std::int64_t ranges = column[0] == 0;
  for (std::size_t i = 1; i < column.size(); ++i) ranges += column[i] == 0 && column[i - 1] != 0;
  return ranges;
}

/// Whether a mask of one column has the interval form, which must be so exactly when its scores allow it.
bool fits(const Mask& mask) {
  const bool expected = masked_ranges(expand(mask)) <= 2;
  EXPECT_EQ(!find_misfit(mask), expected) << testing::picture(mask);
  EXPECT_EQ(lower(mask).form() == MaskForm::intervals, expected) << testing::picture(mask);
  return expected;
}

TEST(MaskAlgebra, FitsExactlyWhenTwoRangesAColumnSuffice) {
  std::mt19937_64 random(4);
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 30, .columns = 1};
  int fitting = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const Mask a = random_ranges(random, shape);
    const Mask b = random_ranges(random, shape);
    fitting += fits(a & b) + fits(a | b);
  }
  EXPECT_GT(fitting, 500);
  EXPECT_LT(fitting, 1900);
}

TEST(MaskAlgebra, FitsAgainWhenALaterOperandCoversWhatDidNot) {
  const Mask three_ranges = masks::causal_blockwise(std::vector<std::int64_t>{4, 3, 2}, 20);
  ASSERT_TRUE(find_misfit(three_ranges));
  const Mask top_left = masks::document(std::vector<std::int64_t>{4, 4, 12}, 20);
  EXPECT_FALSE(find_misfit(three_ranges & top_left));
}

TEST(MaskAlgebra, RefusesMasksOfDifferentSizes) {
  EXPECT_EQ(refusal([] { masks::causal(4, 5) & masks::causal(4, 6); }),
            "Mask & Mask: the masks are 4 x 5 and 4 x 6 scores; give masks of the same size");
  EXPECT_EQ(refusal([] { masks::causal(4, 5) | masks::causal(3, 5); }),
            "Mask | Mask: the masks are 4 x 5 and 3 x 5 scores; give masks of the same size");
}

TEST(MaskAlgebra, RefusesHeadsThatDoNotBroadcast) {
  const auto heads = [](std::int64_t count) {
    return stack_heads(std::vector<Mask>(static_cast<std::size_t>(count), masks::causal(4, 4)));
  };
  EXPECT_EQ(refusal([&] { heads(2) & heads(3); }),
            "Mask & Mask: the masks have 2 and 3 heads; give equal numbers, or 1 on one side");
}

}  // namespace
}  // namespace flashmask
