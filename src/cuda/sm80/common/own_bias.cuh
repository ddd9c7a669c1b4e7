// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/instructions/mma.h"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/tile_scores.cuh"

namespace flashmask::cuda::sm80 {

/// Whether a bias has the kernel's element and comes in eights: what OwnBias takes.
template <class T>
__host__ __device__ inline bool comes_in_units(const BiasArguments& bias) {
  constexpr DType kDType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  return bias.in_eights && bias.dtype == kDType;
}

/// The values of a bias for one warp's scores in shared memory, which no other warp reads: copied there ahead, 16 bytes
/// at a time, and read by ldmatrix, which gives each lane the values of its own scores. They lie in kPieces pieces of
/// kRows query rows × kKeys keys, kStride bytes apart. The swizzle puts eight rows of eight keys on different banks.
template <class T, int kRows, int kKeys, int kPieces = 1, int kStride = 0>
struct OwnBias {
  static constexpr int kAcross = kKeys / 8, kRowBytes = 2 * kKeys, kBytes = kRows * kRowBytes;

  /// Issues the copies of the values from a row and a column of the head on; zeros past the last row or key.
  static __device__ __forceinline__ void copy(std::uint32_t to, const BiasArguments& bias, int batch, int head,
                                              int first_row, int first_column) {
    constexpr int kDown = 32 / kAcross;  // rows at once
    const int lane = lane_index(), own_row = lane / kAcross, across = lane % kAcross;
    const int column = first_column + 8 * across, row = first_row + own_row;
    const int rows = column < bias.key_length ? bias.query_length - row : 0;
    const auto* from = static_cast<const std::uint16_t*>(bias.values) + times(batch, bias.batch) +
                       times(head, bias.head) + times(row, bias.row) + column;
    const std::uint32_t own = to + place(own_row, across);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int down = 0; down < kRows; down += kDown) {
        const std::uint32_t flipped = own ^ place(down, 0) % kRowBytes;
        copy_16(flipped + piece * kStride + down * kRowBytes, from, piece * kRows + down < rows);
        from += times(kDown, bias.row);
      }
  }

  /// Adds the values of a piece to scores by rows.
  template <int kUnits, int kEights>
  static __device__ __forceinline__ void add(float (&s)[kUnits][kEights][4], const BiasArguments& bias,
                                             std::uint32_t piece) {
    static_assert(16 * kUnits == kRows && 8 * kEights == kKeys);
    const std::uint32_t from = piece + place(lane_index() % 16, lane_index() / 16);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        std::uint32_t words[4];
        load_matrices(words, (from ^ (32 * pair)) + 16 * unit * kRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) add_two(&s[unit][2 * pair + i / 2][i % 2 * 2], bias, words[i]);
      }
  }

  /// Does so to transposed scores, of units of 16 keys.
  template <int kUnits, int kEights>
  static __device__ __forceinline__ void add_transposed(float (&s)[kUnits][kEights][4], const BiasArguments& bias,
                                                        std::uint32_t piece) {
    static_assert(16 * kUnits == kKeys && 8 * kEights == kRows);
    const std::uint32_t from = piece + place(lane_index() % 16, lane_index() / 16);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        std::uint32_t words[4];
        load_matrices_transposed(words, (from ^ (32 * unit)) + 16 * pair * kRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) add_two(&s[unit][2 * pair + i % 2][i / 2 * 2], bias, words[i]);
      }
  }

 private:
  /// Multiplies a number by a stride, which fits 32 bits where values come in eights.
  static __device__ __forceinline__ std::int64_t times(int number, std::int64_t stride) {
    return std::int64_t{number} * static_cast<int>(stride);
  }

  /// Returns where eight keys of a row lie in a piece.
  static __device__ __forceinline__ std::uint32_t place(int row, int eight) {
    static_assert(kKeys == 32 || kKeys == 64);
    return static_cast<std::uint32_t>(row * kRowBytes + (eight ^ row / (64 / kKeys) % kAcross) * 16);
  }

  static __device__ __forceinline__ void add_two(float* s, const BiasArguments& bias, std::uint32_t word) {
    const float2 values = unpack<T>(word);
    s[0] = add_bias(bias, s[0], values.x);
    s[1] = add_bias(bias, s[1], values.y);
  }
};

}  // namespace flashmask::cuda::sm80
