// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;
using Rows = std::vector<std::int64_t>;

Rows random_rows(std::int64_t rows) {
  std::mt19937_64 random(8);
  Rows dropped;
  for (std::int64_t k = 0; k < rows / 2; ++k) dropped.push_back(testing::draw(random, 0, rows - 1));
  return dropped;
}

TEST(DropQueries, LeavesTheRowsOfAnyMaskEmpty) {
  for (const auto& [rows, columns] : testing::sizes) {
    const Rows dropped = random_rows(rows);
    const auto is_dropped = [&](std::int64_t i) { return std::ranges::find(dropped, i) != dropped.end(); };
    for (const Mask& mask :
         {masks::full(rows, columns), masks::causal(rows, columns), masks::dilated_window(rows, columns, 3, 3, 2)}) {
      expect_visible(masks::drop_queries(mask, dropped),
                     [&](auto i, auto j) { return !is_dropped(i) && mask.visible(0, 0, i, j); });
    }
  }
}

TEST(DropQueries, LeavesThemEmptyInEveryHeadAndBatchEntry) {
  const std::vector<Mask> heads = {masks::causal(70, 70), masks::strided_factorised(70, 7)};
  const std::vector<Mask> batch = {stack_heads(heads), stack_heads(std::vector{heads[1], heads[0]})};
  const Mask mask = masks::drop_queries(stack_batch(batch), Rows{69, 3, 64});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      expect_visible(
          mask,
          [&](auto i, auto j) {
            return i != 3 && i != 64 && i != 69 && heads[static_cast<std::size_t>((b + h) % 2)].visible(0, 0, i, j);
          },
          b, h);
    }
  }
}

TEST(DropQueries, KeepsTheIntervalFormOfAMaskThatStillFits) {
  EXPECT_EQ(masks::drop_queries(masks::causal(200, 200), Rows{199, 198}).lowered().form(), MaskForm::intervals);
  EXPECT_EQ(masks::drop_queries(masks::causal(200, 200), Rows{50, 100, 150}).lowered().form(), MaskForm::bits);
}

TEST(DropQueries, RefusesARowOutsideTheMask) {
  EXPECT_EQ(refusal([] {
              masks::drop_queries(masks::causal(5, 9), Rows{0, 5});
            }),
            "drop_queries: rows[1] is 5; give a row from 0 to below 5");
}

}  // namespace
}  // namespace flashmask
