// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/scores/bias_values.cuh"

namespace flashmask::cuda::sm90 {

/// Whether rows share a table of distances, so that a tile's scores need few of its entries.
__device__ __forceinline__ bool shares_entries(const BiasArguments& bias) { return bias.distances && bias.row == 0; }

/// What the scores of a tile get from a table of distances that rows share, in units of products: a score's distance,
/// place − line, is one of kLines + kPlaces − 1. Two copies, one shifted by an entry, so that what a lane adds to two
/// neighbouring places is always an aligned pair.
template <int kLines, int kPlaces>
struct NearEntries {
  static constexpr int kCount = kLines + kPlaces;
  alignas(16) float copies[2][kCount + 16];  // the copies begin 16 banks apart

  /// Called by a warp. `first`: the entry for line kLines − 1 and place 0; `step`: 1 where entries rise with places,
  /// −1 where they fall.
  __device__ __forceinline__ void fill(const BiasArguments& bias, int batch, int head, int first, int step) {
    const std::int64_t row = batch * bias.batch + head * bias.head;
#pragma unroll 4
    for (int number = lane_index(); number < kCount; number += 32) {
      const int entry = first + step * number;
      const bool exists = static_cast<unsigned>(entry) < static_cast<unsigned>(bias.entries);
      const float value = exists ? bias_number(bias, row + entry) * bias.to_products : 0;
      copies[0][number] = value;
      if (number > 0) copies[1][number - 1] = value;
    }
    __syncwarp();
  }

  /// Adds to the scores of a unit whose first line, of this lane, is number `line` of the tile.
  template <int kEights>
  __device__ __forceinline__ void add_to(float (&s)[1][kEights][4], int line) const {
    const int first = 2 * (lane_index() % 4) + kLines - 1 - line, odd = first & 1;
    const auto* const from = reinterpret_cast<const float2*>(copies[odd] + first - odd);
    float2 of_lower = from[-4];  // what the line 8 further on gets
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const float2 of_upper = from[4 * eight];
      s[0][eight][0] += of_upper.x;
      s[0][eight][1] += of_upper.y;
      s[0][eight][2] += of_lower.x;
      s[0][eight][3] += of_lower.y;
      of_lower = of_upper;
    }
  }
};

}  // namespace flashmask::cuda::sm90
