// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

TEST(StackBatch, GivesEveryEntryItsMask) {
  const std::vector<Mask> masks = {masks::causal(6, 9), masks::full(6, 9), masks::sliding_window(6, 9, 2)};
  const Mask stacked = stack_batch(masks);
  EXPECT_EQ(stacked.shape(), (MaskShape{.batch = 3, .heads = 1, .rows = 6, .columns = 9}));
  for (std::int64_t n = 0; n < 3; ++n) {
    const Mask& mask = masks[static_cast<std::size_t>(n)];
    expect_visible(
        stacked, [&](auto i, auto j) { return mask.visible(0, 0, i, j); }, n, 0);
  }
}

TEST(StackHeads, GivesEveryHeadItsMask) {
  const std::vector<Mask> pair = {masks::causal(6, 6), masks::full(6, 6)};
  const std::vector<Mask> masks = {stack_heads(pair), masks::sliding_window(6, 6, 2)};
  const Mask stacked = stack_heads(masks);
  EXPECT_EQ(stacked.shape(), (MaskShape{.batch = 1, .heads = 3, .rows = 6, .columns = 6}));
  expect_visible(
      stacked, [](auto i, auto j) { return j <= i; }, 0, 0);
  expect_visible(
      stacked, [](auto, auto) { return true; }, 0, 1);
  expect_visible(
      stacked, [](auto i, auto j) { return j <= i && i - j < 2; }, 0, 2);
}

TEST(StackBatch, OfStackedHeadsKeepsBoth) {
  const auto heads = [](std::int64_t w) {
    return stack_heads(std::vector<Mask>{masks::sliding_window(8, 8, w), masks::sliding_window(8, 8, w + 1)});
  };
  const Mask stacked = stack_batch(std::vector<Mask>{heads(1), heads(4)});
  for (const auto& [n, h, w] : {std::tuple{0, 0, 1}, {0, 1, 2}, {1, 0, 4}, {1, 1, 5}}) {
    expect_visible(
        stacked, [width = w](auto i, auto j) { return j <= i && i - j < width; }, n, h);
  }
}

TEST(Stack, RefusesNothingAndMasksOfDifferentSizes) {
  EXPECT_EQ(refusal([] { stack_batch({}); }), "stack_batch: no masks given; give at least one");
  EXPECT_EQ(refusal([] {
              stack_heads(std::vector<Mask>{masks::causal(4, 4), masks::causal(4, 5)});
            }),
            "stack_heads: masks[1] has shape 1 x 1 x 4 x 5 but masks[0] has 1 x 1 x 4 x 4 (batch x heads x rows x "
            "columns); give masks that differ in the stacked axis only");
}

}  // namespace
}  // namespace flashmask
