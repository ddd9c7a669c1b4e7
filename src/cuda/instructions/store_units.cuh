// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/shared_tile.cuh"

namespace flashmask::cuda {

/// Stores a warp's packed scores, in the layout of pack(), in a tile of shared memory from `row` and `column` on,
/// 32 bits at a time. load_matrices() then reads them back as they were packed: fragments a.
template <class Tile, int kSteps, int kUnits>
__device__ __forceinline__ void store_units(std::uint8_t* tile, const std::uint32_t (&packed)[kSteps][kUnits][4],
                                            int row, int column) {
  const int lane = lane_index(), own_row = row + lane / 4;
  std::uint8_t* const to = tile + Tile::step(0, column / 16) + lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint8_t* const of_half = to + Tile::chunk(own_row, half);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
          *reinterpret_cast<std::uint32_t*>(of_half + Tile::step(16 * unit + 8 * eight, step)) =
              packed[step][unit][2 * half + eight];
  }
}

}  // namespace flashmask::cuda
