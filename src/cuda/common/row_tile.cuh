// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/sections.h"
#include "cuda/views/rows.h"

namespace flashmask::cuda {

/// The row tile that an item stands for: in the order of Sections, but the last rows first, because with causal masks
/// they take longest.
struct RowTile {
  int batch, head, row_tile;

  RowTile() = default;
  /// `row_tiles`: of each head.
  __device__ __forceinline__ RowTile(int item, const RowArguments& arguments, int most_heads, int row_tiles) {
    const Sections sections{arguments.batch * arguments.query_heads, most_heads, row_tiles};
    const SectionTile tile = sections.tile(item);
    row_tile = sections.tiles - 1 - tile.tile;
    batch = tile.head / arguments.query_heads;
    head = tile.head % arguments.query_heads;
  }
  /// Counts batch entries ahead of heads instead, so that the entries of a head are taken side by side.
  __device__ __forceinline__ void count_batch_first(const RowArguments& arguments) {
    const int number = batch * arguments.query_heads + head;
    head = number / arguments.batch;
    batch = number % arguments.batch;
  }
  static __device__ __forceinline__ RowTile none() {
    RowTile tile;
    tile.batch = -1;
    tile.head = tile.row_tile = 0;
    return tile;
  }
};

}  // namespace flashmask::cuda
