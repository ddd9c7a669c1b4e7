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
/// One pair of permutations a batch entry of the mask, shared by its heads.
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

/// Reverse Cuthill-McKee on the symmetrised mask and, where the mask is not symmetric, on the bipartite graph of rows
/// and columns, which gives each side an order of its own; tokens that nobody sees come last. Takes the order with the
/// least work if it saves a fifth of it and more than gathering costs. Kernels compute no more of a partial tile than
/// holds visible scores, so fewer tiles alone are no gain.
FLASHMASK_API Reordering reorder(const Mask& mask, TileShape tile = {}, Executor& executor = default_executor());

/// The order alone, of a graph in compressed sparse rows as from_csr() takes it: the nodes in the order of Cuthill and
/// McKee (1969), reversed. Breadth first, a node's neighbours by ascending degree, from an end of its component (George
/// and Liu 1979); components one after another, nodes without neighbours last. Edges are expected in both directions.
FLASHMASK_API std::vector<std::int64_t> reverse_cuthill_mckee(std::span<const std::int64_t> offsets,
                                                              std::span<const std::int64_t> column_indices);

/// The mask whose row i, column j is row rows[i], column columns[j] of the given one. [batch of the mask, length] each.
/// Throws Status::invalid_argument where a list is no permutation.
FLASHMASK_API Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
                           Executor& executor = default_executor());

}  // namespace flashmask
