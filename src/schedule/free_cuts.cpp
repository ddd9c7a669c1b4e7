// SPDX-License-Identifier: Apache-2.0
#include "schedule/free_cuts.h"

#include "schedule/visible_rows.h"

namespace flashmask {

std::vector<std::int64_t> free_cuts(std::span<const Mask* const> masks, std::int64_t tokens, Executor& executor) {
  VisibleRows all(tokens, tokens);
  for (const Mask* mask : masks)
    for (std::int64_t batch = 0; batch < mask->shape().batch; ++batch) all.add(mask->lowered(), batch, executor);
  const std::vector<VisibleRows::Sides> sides = all.cuts();
  std::vector<std::int64_t> cuts;
  for (std::int64_t i = 0; i <= tokens; ++i) {
    const auto [above, below] = sides[static_cast<std::size_t>(i)];
    if (above <= i && i <= below) cuts.push_back(i);
  }
  return cuts;
}

}  // namespace flashmask
