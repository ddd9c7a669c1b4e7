// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/mma.h"
#include "cuda/sm90/walk/walk_memory.cuh"

/// What state groups read and write in shared memory; a warp has 16 of a warpgroup's 64 rows of a state.
namespace flashmask::cuda::sm90 {

/// A matrix in global memory that holds a warpgroup's 64 rows of a state: its number of the first row and column, and
/// how many rows and columns there are from it on.
struct StateMatrix {
  float* first;
  std::int64_t row_stride, column_stride;
  int rows, columns;  ///< multiples of 8
};

/// Calls body(number, where it is in the matrix) for those of the thread's numbers that exist there.
template <class Body>
__device__ __forceinline__ void for_each_number(float (&state)[64], const StateMatrix& matrix, const Body& body) {
  const int lane = lane_index(), row = 16 * warp_of_group();
  const std::int64_t next = matrix.column_stride, below = 8 * matrix.row_stride;
  float* at = matrix.first + (row + lane / 4) * matrix.row_stride + lane % 4 * 2 * next;
#pragma unroll
  for (int eight = 0; eight < 16; ++eight, at += 8 * next)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + 8 * half < matrix.rows && 8 * eight < matrix.columns) {
        body(state[4 * eight + 2 * half], at + half * below);
        body(state[4 * eight + 2 * half + 1], at + half * below + next);
      }
}

/// Rounds the warp's rows of 128 columns into panels of 64 columns, which lie `panel_bytes` apart; `tile`: where the
/// warpgroup's rows begin in the first one.
template <class T>
__device__ __forceinline__ void store_state(const float (&state)[64], std::uint32_t tile, int panel_bytes) {
  const int lane = lane_index(), in_matrix = lane % 8;
  const std::uint32_t rows =
      tile + (16 * warp_of_group() + lane / 8 % 2 * 8 + in_matrix) * kPanel * 2 + (lane / 16 ^ in_matrix) * 16;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = pack<T>(state[8 * i + 2 * j], state[8 * i + 2 * j + 1]);
    store_matrices((rows ^ i % 4 * 32) + i / 4 * panel_bytes, words);
  }
}

/// Loads the warp's 16 columns of a panel of kWalkTokens rows, transposed, each row times its weight.
template <class T>
__device__ __forceinline__ void load_weighted_columns(std::uint32_t (&columns)[4][4], std::uint32_t panel,
                                                      const float* weights) {
  const int lane = lane_index();
  const std::uint32_t from =
      panel + (lane / 16 * 8 + lane % 8) * kPanel * 2 + ((2 * warp_of_group() + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
  for (int sixteen = 0; sixteen < 4; ++sixteen) {
    load_matrices_transposed(columns[sixteen], from + sixteen * 16 * kPanel * 2);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 weight = *reinterpret_cast<const float2*>(weights + 16 * sixteen + j / 2 * 8 + lane % 4 * 2),
                   numbers = unpack<T>(columns[sixteen][j]);
      columns[sixteen][j] = pack<T>(numbers.x * weight.x, numbers.y * weight.y);
    }
  }
}

/// Adds each lane's column of a tile of kWalkTokens rows to its sum, each row times its weight; lane l's column is
/// `first` + l, and weights(token) are those of four tokens. A lane reads two columns of half of the rows, and then
/// lanes trade.
template <class T, class Weights>
__device__ __forceinline__ void add_weighted_rows(float& sum, const std::uint8_t* tile, int first,
                                                  const Weights& weights) {
  const int lane = lane_index(), half = lane / 16, column = first + lane % 16 * 2, chunk = column % kPanel / 8;
  const std::uint32_t from =
      shared_address(tile) + (column / kPanel * kWalkTokens + 4 * half) * kPanel * 2 + column % 8 * 2;
  float2 sums = {};
#pragma unroll 4
  for (int token = 0; token < kWalkTokens; token += 8) {
    const float4 four = weights(token + 4 * half);
    const float weight[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack<T>(load_word(from + (token + i) * kPanel * 2 + (chunk ^ (4 * half + i)) * 16));
      sums.x += weight[i] * two.x, sums.y += weight[i] * two.y;
    }
  }
  sums.x += __shfl_xor_sync(~0U, sums.x, 16), sums.y += __shfl_xor_sync(~0U, sums.y, 16);
  const float left = __shfl_sync(~0U, sums.x, lane / 2), right = __shfl_sync(~0U, sums.y, lane / 2);
  sum += lane % 2 == 0 ? left : right;
}

}  // namespace flashmask::cuda::sm90
