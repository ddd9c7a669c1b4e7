// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/instructions/lane_exchanges.cuh"
#include "cuda/scores/tile_scores.cuh"

/// Which scores of a tile a warp has to hide, as words of bits that the warp makes for its own rows: 1 = masked. A warp
/// has kUnits of 16 rows and kColumns columns. Lane 4 g + q holds, for row g of each eight rows and for every eight
/// columns, columns 2 q and 2 q + 1. Four eights of columns and one eight of rows give a byte, with columns 8 n + 2 q
/// and + 1 in bits 2 n and 2 n + 1. Bytes follow one another by rows, then by groups of 32 columns:
///
///   two units, 32 rows     word c: columns 32 c …, bytes: rows g, g + 8, g + 16, g + 24
///   one unit, 16 rows      word c: columns 64 c …, bytes: rows g, g + 8, and the same for columns 64 c + 32 …
///
/// With fewer columns, some bits of a word have no meaning.
namespace flashmask::cuda {

template <int kUnits_, int kColumns_>
struct FragmentWords {
  static constexpr int kUnits = kUnits_, kColumns = kColumns_, kRows = 16 * kUnits;
  static constexpr int kWords = (kUnits * kColumns + 63) / 64, kGroups = 32 / kRows;  // groups of 32 columns per word
  static_assert((kUnits == 1 || kUnits == 2) && kColumns % 16 == 0);

  std::uint32_t words[kWords];

  /// Whether the warp's rows see nothing of the tile.
  __device__ __forceinline__ bool hide_all() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) all &= words[i];
    return __all_sync(~0U, all == ~0U);
  }

  /// Whether the warp's rows see all of the tile.
  __device__ __forceinline__ bool hide_nothing() const {
    std::uint32_t any = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) any |= words[i];
    return __all_sync(~0U, any == 0);
  }

  /// The place of number `i` of an accumulator of 16 × 8 scores.
  static __device__ __forceinline__ constexpr BitPlace place(int unit, int eight, int i) {
    const int byte = eight / 4 * (2 * kUnits) + 2 * unit + i / 2;
    return {byte / 4, byte % 4 * 8 + eight % 4 * 2 + i % 2};
  }
};

/// Hides masked scores.
template <int kUnits, int kEights>
__device__ __forceinline__ void hide(float (&s)[kUnits][kEights][4], const FragmentWords<kUnits, 8 * kEights>& masked) {
  cuda::hide<FragmentWords<kUnits, 8 * kEights>>(s, masked.words);
}

/// A tile's mask in shared memory, in the form in which the plan holds it.
template <int kRows, int kColumns>
union SharedMask {
  static_assert(kRows % 64 == 0 && kColumns % 64 == 0);
  alignas(16) std::int32_t ends[4][kColumns];             // begin, end, begin, end of each column
  std::uint32_t cells[kRows / 64][kColumns / 64][2][64];  // laid out as row_words() of mask_reads.cuh
};

/// Bit i: row first_row + i of the sequence is masked by one of the column's two ranges.
template <int kRows>
__device__ __forceinline__ std::uint32_t masked_rows(const std::int32_t (&ends)[4], int first_row) {
  int clipped[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) clipped[i] = min(max(ends[i] - first_row, 0), kRows);
  return bits_from(clipped[0], clipped[1] - clipped[0]) | bits_from(clipped[2], clipped[3] - clipped[2]);
}

/// Makes the words from intervals. `first_row`: the warp's first row in the sequence; `first_column`: its first column
/// in the tile. Each lane finds the rows of one column in 32; the lanes then exchange them.
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

/// Makes the words from cells. `first_row` counts within the tile here, and is a multiple of 16.
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
