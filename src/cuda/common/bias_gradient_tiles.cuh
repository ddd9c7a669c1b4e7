// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/bias_gradient_arguments.h"
#include "cuda/common/tile_walk.cuh"

/// Which tiles of scores the gradient of a bias visits.
namespace flashmask::cuda {

__device__ __forceinline__ BiasGradientArguments::Place BiasGradientArguments::place(int number, int part) const {
  const int list = number / places();
  number %= places();
  const int from = list_batches * part / parts, until = list_batches * (part + 1) / parts;
  Place found{list / lists_across + from, list % lists_across, 0, number, (until - from) * list_heads, row_tiles};
  if (sums == BiasSums::tiles) {
    found.row_tile = number / column_tiles;
    found.column_tile = number % column_tiles;
    found.tiles = 1;
  } else if (sums == BiasSums::diagonals) {
    const int distance = number - (column_tiles - 1);  // between tiles, row − column
    found.row_tile = max(distance, 0);
    found.column_tile = found.row_tile - distance;
    found.tiles = min(row_tiles - found.row_tile, column_tiles - found.column_tile);
  }
  return found;
}

/// Returns the list as TileList finds it.
__device__ __forceinline__ int BiasGradientArguments::list_of(int batch, int head) const {
  return (map.batch == 1 ? 0 : batch) * map.heads + head / map.head_ratio;
}

__device__ __forceinline__ BiasGradientArguments::TileNeeds BiasGradientArguments::needs_of(int list, int row_tile,
                                                                                            int column_tile) const {
  if (map.visit_all) return {true, true};
  constexpr int kTile = static_cast<int>(kBiasTile);
  const int down = kTile / map_tile.rows, right = kTile / map_tile.columns;
  const int row = row_tile * down, end = min((column_tile + 1) * right, map.outer_tiles);
  const std::uint32_t bits = ((1U << down) - 1) << row % 32;
  std::uint32_t any = 0, all_full = bits;
#pragma unroll 1
  for (int column = column_tile * right; column < end; ++column) {
    const MapWords words(map, list, column);
    const std::uint32_t full = words.of(map, 1, row / 32);
    any |= full | words.of(map, 0, row / 32);
    all_full &= full;
  }
  return {(any & bits) != 0, all_full != bits};
}

}  // namespace flashmask::cuda
