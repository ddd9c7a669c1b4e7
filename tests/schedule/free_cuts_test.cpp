// SPDX-License-Identifier: Apache-2.0
#include "schedule/free_cuts.h"

#include <gtest/gtest.h>

#include "flashmask/builders.h"
#include "flashmask/mask.h"
#include "kit/corpus.h"

namespace flashmask {
namespace {

/// Asks of every pair of tokens whether one sees the other across the cut.
std::vector<std::int64_t> cuts_by_pairs(const Mask& mask) {
  const std::vector<std::uint8_t> visible = expand(mask);
  const MaskShape& shape = mask.shape();
  std::vector<std::int64_t> cuts;
  for (std::int64_t cut = 0; cut <= shape.rows; ++cut) {
    bool crossed = false;
    for (std::size_t i = 0; i < visible.size(); ++i) {
      const std::int64_t column = static_cast<std::int64_t>(i) % shape.columns;
      const std::int64_t row = static_cast<std::int64_t>(i) / shape.columns % shape.rows;
      crossed |= visible[i] != 0 && (row < cut) != (column < cut);
    }
    if (!crossed) cuts.push_back(cut);
  }
  return cuts;
}

TEST(FreeCuts, AreWhereNoTokenSeesAcross) {
  for (const corpus::Entry& entry : corpus::entries()) {
    const Mask mask = entry.build({150, 150, 2});
    const Mask* const masks[] = {&mask};
    EXPECT_EQ(free_cuts(masks, 150, default_executor()), cuts_by_pairs(mask)) << entry.name;
  }
}

TEST(FreeCuts, OfSeveralMasksAreThoseOfAll) {
  const Mask first = masks::document({100, 50, 50}, 200), second = masks::document({50, 50, 100}, 200);
  const Mask* const both[] = {&first, &second};
  EXPECT_EQ(free_cuts(both, 200, default_executor()), (std::vector<std::int64_t>{0, 100, 200}));
}

}  // namespace
}  // namespace flashmask
