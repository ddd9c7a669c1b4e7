// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flashmask/bit_mask.h"
#include "flashmask/executor.h"
#include "flashmask/tile.h"
#include "schedule/reorder/graph.h"

namespace flashmask {

/// Which graph an order was made on.
enum class Sides : std::uint8_t { none, one, two };

/// Rows and columns of one batch entry in a new order; empty: as they are.
struct TokenOrder {
  Sides sides = Sides::none;
  std::vector<std::uint32_t> rows, columns;
  std::int64_t saved = 0;  ///< in blocks of scores, see worthwhile()
  /// What was read off the mask to find it; null where that is not all there is in every head.
  std::shared_ptr<const Graph> visible;
};

/// Work is counted in blocks of 32 rows × 8 columns, about what kernels leave out of a partial tile: a tile that holds
/// next to nothing costs next to nothing, and fewer, fuller tiles are no gain. `before` blocks are computed in the old
/// order, `saved` fewer in the new one. Worth it when that is a fifth and pays for gathering `tokens` rows and columns.
bool worthwhile(std::int64_t before, std::int64_t saved, std::int64_t tokens);

/// The best order for one batch entry, or the one it has.
TokenOrder find_order(const BitMask& mask, std::int64_t batch, TileShape tile, Executor& executor);

}  // namespace flashmask
