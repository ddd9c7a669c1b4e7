// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/tile.h"

namespace flashmask {

/// A mask whose visible scores were gathered into fewer tiles by renaming tokens (Binary Block Masking, section 3.2).
/// There is one pair of permutations per batch entry of the mask, shared by its heads.
struct Reordering {
  Mask mask;                          ///< in the new order
  std::vector<std::int64_t> rows;     ///< [batch, rows]: row i of `mask` is row rows[i] of the original
  std::vector<std::int64_t> columns;  ///< [batch, columns]
  TileShape tile;
  std::int64_t tiles_before = 0;  ///< active tiles at `tile`
  std::int64_t tiles_after = 0;
  bool gained = false;  ///< false: `mask` is the original and the permutations change nothing
  std::string why;      ///< which order was taken, or why none
};

/// Applies reverse Cuthill-McKee to the symmetrised mask and, where the mask is not symmetric, to the bipartite graph
/// of rows and columns, which gives each side an order of its own; tokens without visible scores come last. Takes the
/// order with the least work if that saves a fifth of the work and more than gathering costs. Kernels compute only the
/// parts of a partial tile that hold visible scores, so fewer tiles alone are no gain.
FLASHMASK_API Reordering reorder(const Mask& mask, TileShape tile = {}, Executor& executor = default_executor());

/// Returns the order alone, for a graph in compressed sparse rows as from_csr() takes it: the nodes in the order of
/// Cuthill and McKee (1969), reversed. Their search is breadth first, from an end of each component (George and Liu
/// 1979), a node's neighbours by ascending degree; components come one after another, nodes without neighbours last.
/// Edges are expected in both directions.
FLASHMASK_API std::vector<std::int64_t> reverse_cuthill_mckee(std::span<const std::int64_t> offsets,
                                                              std::span<const std::int64_t> column_indices);

/// Returns the mask whose row i, column j is row rows[i], column columns[j] of the given one. Both lists are [batch of
/// the mask, length]. Throws Status::invalid_argument where one is not a permutation.
FLASHMASK_API Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
                           Executor& executor = default_executor());

}  // namespace flashmask
