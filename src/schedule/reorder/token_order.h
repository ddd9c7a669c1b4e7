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

/// The graph that an order was made on: none, the symmetrised mask, or the bipartite graph of rows and columns.
enum class Sides : std::uint8_t { none, one, two };

/// Rows and columns of one batch entry in a new order; empty if they stay as they are.
struct TokenOrder {
  Sides sides = Sides::none;
  std::vector<std::uint32_t> rows, columns;
  std::int64_t saved = 0;  ///< in blocks of scores, see worthwhile()
  /// The result of visible_columns() that led to the order; null unless it holds all visible scores of every head.
  std::shared_ptr<const Graph> visible;
};

/// Whether a new order is worth it: it computes `saved` blocks fewer than the `before` of the old order, which must be
/// more than a fifth and pay for gathering `tokens` rows and columns. A block is 32 rows × 8 columns, about the unit
/// that kernels leave out of a partial tile: nearly empty tiles cost next to nothing; fewer, fuller ones are no gain.
bool worthwhile(std::int64_t before, std::int64_t saved, std::int64_t tokens);

/// Returns the best order for one batch entry, or an empty one to keep the order it has.
TokenOrder find_order(const BitMask& mask, std::int64_t batch, TileShape tile, Executor& executor);

}  // namespace flashmask
