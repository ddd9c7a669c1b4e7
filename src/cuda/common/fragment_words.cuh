// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/arithmetic.cuh"

/// Which scores of a tile a warp has to hide, as words of bits that it makes of its own rows: 1 = masked. A warp has
/// kUnits of 16 rows and kColumns columns, and lane 4 g + q holds, of row g of each eight rows and of every eight
/// columns, columns 2 q and 2 q + 1: for four eights of columns and one of rows that is a byte, with columns 8 n + 2 q
/// and + 1 in bits 2 n and 2 n + 1. Bytes follow one another by rows, then by groups of 32 columns:
///
///   two units, 32 rows     word c: columns 32 c …, bytes: rows g, g + 8, g + 16, g + 24
///   one unit, 16 rows      word c: columns 64 c …, bytes: rows g, g + 8, and the same for columns 64 c + 32 …
///
/// Where there are fewer columns, some bits of a word mean nothing.
namespace flashmask::cuda {

template <int kUnits_, int kColumns_>
struct FragmentWords {
  static constexpr int kUnits = kUnits_, kColumns = kColumns_, kRows = 16 * kUnits;
  static constexpr int kWords = (kUnits * kColumns + 63) / 64, kGroups = 32 / kRows;  // of 32 columns in a word
  static_assert((kUnits == 1 || kUnits == 2) && kColumns % 16 == 0);

  std::uint32_t words[kWords];

  /// Whether none of the warp's rows sees anything.
  __device__ __forceinline__ bool hide_all() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all &= words[i];
    return __all_sync(~0U, all == ~0U);
  }

  /// Whether they all see everything.
  __device__ __forceinline__ bool hide_nothing() const {
    std::uint32_t any = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) any |= words[i];
    return __all_sync(~0U, any == 0);
  }

  /// Of number `i` of an accumulator of 16 × 8 scores: the bit in words[word].
  struct Place {
    int word, bit;
  };
  static __device__ __forceinline__ constexpr Place place(int unit, int eight, int i) {
    const int byte = eight / 4 * (2 * kUnits) + 2 * unit + i / 2;
    return {byte / 4, byte % 4 * 8 + eight % 4 * 2 + i % 2};
  }
};

/// Scores of a warp: [unit of 16 rows][eight columns][number of the accumulator].
template <int kUnits, int kEights>
__device__ __forceinline__ void hide(float (&s)[kUnits][kEights][4], const FragmentWords<kUnits, 8 * kEights>& masked) {
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        const auto [word, bit] = FragmentWords<kUnits, 8 * kEights>::place(unit, eight, i);
        if (masked.words[word] & 1U << bit) s[unit][eight][i] = -INFINITY;
      }
    }
  }
}

/// In each byte of the eight lanes that are 4 apart, bit i of lane j changes places with bit j of lane i.
__device__ __forceinline__ std::uint32_t transpose_bytes(std::uint32_t word) {
  const unsigned lane = lane_index();
#pragma unroll
  for (unsigned half = 4; half != 0; half /= 2) {
    const std::uint32_t low = half == 4 ? 0x0F0F0F0FU : half == 2 ? 0x33333333U : 0x55555555U;
    const bool upper = (lane & 4 * half) != 0;
    const std::uint32_t sent = __funnelshift_l(word, word, upper ? half : 32 - half);
    const std::uint32_t received = __shfl_xor_sync(~0U, sent, 4 * half), own = upper ? ~low : low;
    word = (word & own) | (received & ~own);
  }
  return word;
}

/// Between lanes kDistance apart: the upper half of the lower one's word changes places with the lower half of the
/// upper one's.
template <int kDistance>
__device__ __forceinline__ std::uint32_t exchange_halves(std::uint32_t word) {
  const std::uint32_t other = __shfl_xor_sync(~0U, word, kDistance);
  return __byte_perm(word, other, (lane_index() & kDistance) != 0 ? 0x3276 : 0x5410);
}

/// In four lanes that are kDistance apart, byte i of lane j changes places with byte j of lane i.
template <int kDistance>
__device__ __forceinline__ std::uint32_t exchange_bytes(std::uint32_t word) {
  const std::uint32_t other = __shfl_xor_sync(~0U, word, kDistance);
  word = __byte_perm(word, other, (lane_index() & kDistance) != 0 ? 0x3715 : 0x6240);
  return exchange_halves<2 * kDistance>(word);
}

/// A tile's mask in shared memory, in the form that the plan has it in.
template <int kRows, int kColumns>
union SharedMask {
  static_assert(kRows % 64 == 0 && kColumns % 64 == 0);
  alignas(16) std::int32_t ends[4][kColumns];             // of each column: begin, end, begin, end
  std::uint32_t cells[kRows / 64][kColumns / 64][2][64];  // as row_words() of bit_cells.cuh has them
};

/// Of rows first_row … + kRows − 1 of the sequence, those that a column's two ranges mask.
template <int kRows>
__device__ __forceinline__ std::uint32_t masked_rows(const std::int32_t (&ends)[4], int first_row) {
  int clipped[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) clipped[i] = min(max(ends[i] - first_row, 0), kRows);
  return bits_from(clipped[0], clipped[1] - clipped[0]) | bits_from(clipped[2], clipped[3] - clipped[2]);
}

/// From intervals. `first_row`: the warp's first, of the sequence; `first_column`: its first of the tile. Each lane
/// finds the rows of one column of 32, and the lanes then exchange.
template <int kUnits, int kColumns, int kTileRows, int kTileColumns>
__device__ __forceinline__ void words_from_intervals(FragmentWords<kUnits, kColumns>& out,
                                                     const SharedMask<kTileRows, kTileColumns>& mask, int first_row,
                                                     int first_column) {
  using Words = FragmentWords<kUnits, kColumns>;
  const unsigned lane = lane_index(), g = lane / 4, own = g / 2 * 8 + lane % 4 * 2 + g % 2;
#pragma unroll
  for (int word = 0; word < Words::kWords; ++word) {
    std::uint32_t rows = 0;
#pragma unroll
    for (int group = 0; group < Words::kGroups; ++group) {
      const unsigned column = first_column + (word * Words::kGroups + group) * 32 + own;
      std::int32_t ends[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) ends[i] = mask.ends[i][column];
      rows |= masked_rows<Words::kRows>(ends, first_row) << group * Words::kRows;
    }
    out.words[word] = transpose_bytes(rows);
  }
}

/// From cells; `first_row` is of the tile too, and a multiple of 16.
template <int kUnits, int kColumns, int kTileRows, int kTileColumns>
__device__ __forceinline__ void words_from_cells(FragmentWords<kUnits, kColumns>& out,
                                                 const SharedMask<kTileRows, kTileColumns>& mask, int first_row,
                                                 int first_column) {
  using Words = FragmentWords<kUnits, kColumns>;
  const unsigned lane = lane_index(), byte = lane % 4, bytes = byte | (byte + 4) << 4;
#pragma unroll
  for (int word = 0; word < Words::kWords; ++word) {
    std::uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = first_column / 32 + word * Words::kGroups + i / (2 * kUnits);
      const unsigned row = first_row % 64 + i % (2 * kUnits) * 8 + lane / 4;
      rows[i] = mask.cells[first_row / 64][group / 2][group % 2][row];
    }
    constexpr unsigned kHalves = 0x5410;
    out.words[word] = __byte_perm(__byte_perm(rows[0], rows[1], bytes), __byte_perm(rows[2], rows[3], bytes), kHalves);
  }
}

}  // namespace flashmask::cuda
