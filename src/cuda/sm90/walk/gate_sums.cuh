// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/walk_memory.cuh"

/// Sums that the walks of a backward leave for the gradients of gates. A warpgroup holds accumulators of 64 rows, warp
/// w rows 16 w and on.
namespace flashmask::cuda::sm90 {

using SumsOfWarps = float[4][kWalkTokens];

/// Adds up a column over the warp's rows: number i of the lane's two columns of eight.
__device__ __forceinline__ void leave_column(SumsOfWarps& to, float sum, int eight, int i) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  if (lane_index() < 4) to[warp_of_group()][8 * eight + 2 * lane_index() + i] = sum;
}

/// Leaves, for each token t, the sum of the pairs of tokens before t and the warp's rows from t on; `row` is the
/// thread's first.
__device__ __forceinline__ void leave_crossing(SumsOfWarps& to, const float (&pairs)[32], int row) {
  const int quad = lane_index() % 4;
  float before[2] = {};  // the sum of the row's earlier columns
#pragma unroll
  for (int eight = 0; eight < 8; ++eight) {
    float crossing[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = pairs[4 * eight + 2 * half] + pairs[4 * eight + 2 * half + 1];
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        const float earlier = __shfl_up_sync(~0U, sum, distance);
        if (quad >= distance) sum += earlier;
      }
      const float last = __shfl_up_sync(~0U, sum, 1);
      const float first = before[half] + (quad == 0 ? 0 : last);
      const int token = row + 8 * half, column = 8 * eight + 2 * quad;
      if (column <= token) crossing[0] += first;
      if (column + 1 <= token) crossing[1] += first + pairs[4 * eight + 2 * half];
      before[half] += __shfl_sync(~0U, sum, lane_index() | 3);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) leave_column(to, crossing[i], eight, i);
  }
}

/// Writes the sums of what the warps left, by a warpgroup after a barrier.
__device__ __forceinline__ void write_sums(float* to, const SumsOfWarps& from) {
  const int token = static_cast<int>(thread_index()) % 128;
  if (token < kWalkTokens) to[token] = from[0][token] + from[1][token] + from[2][token] + from[3][token];
}

/// Adds up over the four lanes that hold a row.
__device__ __forceinline__ float sum_of_row(float sum) {
  sum += __shfl_xor_sync(~0U, sum, 1);
  return sum + __shfl_xor_sync(~0U, sum, 2);
}

/// Finds the products of the thread's two rows of results with the same rows of a tile of 64 rows.
template <class T, int kCount>
__device__ __forceinline__ void find_row_products(float (&sums)[2], const float (&d)[kCount], std::uint32_t tile) {
  const int lane = lane_index(), row = 16 * warp_of_group() + lane / 4;
  const std::uint32_t at = tile + row * kPanel * 2 + lane % 4 * 4;
  sums[0] = sums[1] = 0;
#pragma unroll
  for (int eight = 0; eight < kCount / 4; ++eight)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 numbers = unpack<T>(
          load_word(at + eight / 8 * kWalkTokens * kPanel * 2 + half * 8 * kPanel * 2 + (eight % 8 ^ lane / 4) * 16));
      sums[half] += numbers.x * d[4 * eight + 2 * half] + numbers.y * d[4 * eight + 2 * half + 1];
    }
#pragma unroll
  for (float& sum : sums) sum = sum_of_row(sum);
}

/// Writes a number per row, for 64 tokens, where all lanes that hold a row have its number.
__device__ __forceinline__ void leave_rows(float* to, const float (&numbers)[2]) {
  const int lane = lane_index(), row = 16 * warp_of_group() + lane / 4;
  if (lane % 4 == 0) to[row] = numbers[0], to[row + 8] = numbers[1];
}

}  // namespace flashmask::cuda::sm90
