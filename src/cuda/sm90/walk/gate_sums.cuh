// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/walk_memory.cuh"

/// Sums that the walks of a backward leave for the gradients of gates. A warpgroup holds accumulators of 64 rows, warp
/// w rows 16 w and on.
namespace flashmask::cuda::sm90 {

using SumsOfWarps = float[4][kWalkTokens];

/// Fills a tile, with which multiply_packed() adds up columns before each column: a 1 in row j, column t where j < t.
__device__ __forceinline__ void fill_earlier(std::uint8_t* tile) {
  const int thread = static_cast<int>(thread_index()) % 128, row = thread / 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int eight = thread % 2 * 4 + i;
    std::uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int column = 8 * eight + 2 * word;
      words[word] = pack<__nv_bfloat16>(row < column ? 1 : 0, row < column + 1 ? 1 : 0);
    }
    *reinterpret_cast<uint4*>(tile + row * kPanel * 2 + (eight ^ row % 8) * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Adds up the first 2 kKept sums of two lanes, each of which ends with half of them.
template <int kKept>
__device__ __forceinline__ void share_sums(float (&sums)[16]) {
  const bool upper = (lane_index() & 2 * kKept) != 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float sent = upper ? sums[i] : sums[i + kKept], own = upper ? sums[i + kKept] : sums[i];
    sums[i] = own + __shfl_xor_sync(~0U, sent, 2 * kKept);
  }
}

/// Leaves, for each token t, the sum of `earlier` over the warp's rows from t on, which has a column for each token;
/// `row` is the thread's first.
__device__ __forceinline__ void leave_crossing(SumsOfWarps& to, const float (&earlier)[32], int row) {
  const int lane = lane_index();
  float sums[16];  // of the thread's columns
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int token = 8 * (i / 2) + lane % 4 * 2 + i % 2, at = 4 * (i / 2) + i % 2;
    sums[i] = (token <= row ? earlier[at] : 0) + (token <= row + 8 ? earlier[at + 2] : 0);
  }
  // Each of the eight lanes with the same columns ends with the sums of two of them.
  share_sums<8>(sums);
  share_sums<4>(sums);
  share_sums<2>(sums);
  *reinterpret_cast<float2*>(to[warp_of_group()] + lane * 2) = {sums[0], sums[1]};
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
