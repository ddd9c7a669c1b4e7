// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/mask_reads.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "flashmask/mask_shape.h"

/// The bits that a warp makes of a partial tile, from a mask of either form. Kernels know no more of a mask than that.
namespace flashmask::cuda::sm90 {

/// Bits of a partial tile in the order of accumulators: word [q][row] holds the columns 8 i + 2 q and 8 i + 2 q + 1 of
/// a row at bits 2 i and 2 i + 1, 1 = masked. The padding spares builders and consumers bank conflicts.
template <int kRows>
struct FragmentBits {
  static constexpr int kPitch = kRows + 8;
  alignas(16) std::uint32_t words[4 * kPitch];
  std::uint32_t hidden;  // bit i: rows [64 i, 64 i + 64) see nothing of the tile; only set for shapes with kSkipsHidden
};

/// Which bits of FragmentBits a thread reads: one word for each of its two rows.
struct RowWords {
  static constexpr int kWords = 2;

  /// The place of number `i` of an accumulator of 16 × 8 scores.
  static __device__ __forceinline__ constexpr BitPlace place(int, int eight, int i) {
    return {i / 2, 2 * eight + i % 2};
  }
};

/// Returns FragmentBits::hidden of a tile of kColumns, from its bits. Called by a warp.
template <int kColumns, int kRows>
__device__ __forceinline__ std::uint32_t hidden_groups(const FragmentBits<kRows>& bits) {
  constexpr std::uint32_t kAll = kColumns == 128 ? ~0U : (1U << kColumns / 4) - 1;
  const int lane = threadIdx.x % 32;
  std::uint32_t hidden = 0;
#pragma unroll
  for (int group = 0; group < kRows / 64; ++group) {
    std::uint32_t words = kAll;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint2 own = reinterpret_cast<const uint2*>(bits.words + q * FragmentBits<kRows>::kPitch + group * 64)[lane];
      words &= own.x & own.y;
    }
    if (__all_sync(~0U, words == kAll)) hidden |= 1U << group;
  }
  return hidden;
}

/// PartialTile<form, rows, columns, at once>(mask, list, first row, first column): the constructor loads what it needs
/// of the mask, build() makes the bits. Columns past the mask's last are masked in every row. With kAtOnce < kColumns,
/// for warps short of registers, build() loads instead: intervals kAtOnce columns at a time, cells kAtOnce / kColumns
/// of the rows at a time.
template <MaskForm kForm, int kRows, int kColumns, int kAtOnce = kColumns>
class PartialTile;

template <int kRows, int kColumns, int kAtOnce>
class PartialTile<MaskForm::intervals, kRows, kColumns, kAtOnce> {
 public:
  __device__ __forceinline__ PartialTile(const MaskView& mask, int list, int first_row, int first_column)
      : mask_(mask), list_(list), first_row_(first_row), first_column_(first_column), lane_(threadIdx.x % 32) {
    if constexpr (kAtOnce == kColumns) load(0);
  }

  /// Sets a column's bit in the rows where it changes between visible and masked, then takes running parities down the
  /// rows.
  __device__ __forceinline__ void build(FragmentBits<kRows>& bits) {
    for (int i = lane_; i < FragmentBits<kRows>::kPitch; i += 32)
      reinterpret_cast<uint4*>(bits.words)[i] = {0, 0, 0, 0};
    __syncwarp();
    if constexpr (kAtOnce == kColumns) {
      mark(bits, 0);
    } else {
#pragma unroll 1
      for (int first = 0; first < kColumns; first += kAtOnce) {
        load(first);
        mark(bits, first);
      }
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q) sum_rows(bits.words + q * FragmentBits<kRows>::kPitch);
  }

 private:
  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce / 32; ++i)
      load_intervals(mask_, list_, first_column_ + first + 32 * i + lane_, ends_[i]);
  }

  __device__ __forceinline__ void mark(FragmentBits<kRows>& bits, int first) const {
#pragma unroll
    for (int i = 0; i < kAtOnce / 32; ++i) mark_column(bits, ends_[i], first + 32 * i + lane_);
  }

  __device__ __forceinline__ void mark_column(FragmentBits<kRows>& bits, const std::int32_t (&ends)[4],
                                              int column) const {
    std::uint32_t* words = bits.words + column % 8 / 2 * FragmentBits<kRows>::kPitch;
    const std::uint32_t bit = 1U << (column / 8 * 2 + column % 2);
#pragma unroll
    for (int range = 0; range < 2; ++range) {
      const int begin = max(ends[2 * range] - first_row_, 0), end = ends[2 * range + 1] - first_row_;
      if (begin >= min(end, kRows)) continue;
      atomicXor(words + begin, bit);
      if (end < kRows) atomicXor(words + end, bit);
    }
  }

  /// Replaces words[row] by the exclusive or of words[0 … row]; each lane has consecutive rows.
  __device__ __forceinline__ void sum_rows(std::uint32_t* words) const {
    constexpr int kOwn = kRows / 32;
    struct alignas(kOwn % 4 == 0 ? 16 : 8) Rows {
      std::uint32_t word[kOwn];
    };
    Rows& rows = reinterpret_cast<Rows*>(words)[lane_];
    Rows own = rows;
#pragma unroll
    for (int i = 1; i < kOwn; ++i) own.word[i] ^= own.word[i - 1];
    std::uint32_t before = own.word[kOwn - 1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0U, before, step);
      if (lane_ >= step) before ^= other;
    }
    before ^= own.word[kOwn - 1];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own.word[i] ^= before;
    rows = own;
  }

  std::int32_t ends_[kAtOnce / 32][4];  // one column per lane
  const MaskView& mask_;
  int list_, first_row_, first_column_, lane_;
};

template <int kRows, int kColumns, int kAtOnce>
class PartialTile<MaskForm::bits, kRows, kColumns, kAtOnce> {
  static constexpr int kParts = kRows / 32 * kAtOnce / kColumns;  // groups of 32 rows loaded at once
  static constexpr int kGroups = kColumns / 32;                   // groups of columns, one word each
  static constexpr int kCellColumns = kColumns % kCellSize == 0 ? kColumns / kCellSize : kColumns / kCellSize + 1;
  static_assert(kRows % kCellSize == 0 && kColumns % 32 == 0 && kRows / kCellSize * kCellColumns <= 32);

 public:
  __device__ __forceinline__ PartialTile(const MaskView& mask, int list, int first_row, int first_column)
      : cells_(mask.cells), first_group_(first_column / 32), lane_(threadIdx.x % 32) {
    own_cell_ = find_cell(mask.cells, list, first_row / kCellSize + lane_ / kCellColumns,
                          first_column / kCellSize + lane_ % kCellColumns);
    if constexpr (kAtOnce == kColumns) load(0);
  }

  /// A cell's word has 32 columns of a row, one byte for each lane of a quad; a word of the tile joins one such byte of
  /// each cell.
  __device__ __forceinline__ void build(FragmentBits<kRows>& bits) {
    if constexpr (kAtOnce == kColumns) {
      store(bits, 0);
    } else {
#pragma unroll 1
      for (int first = 0; first < kRows / 32; first += kParts) {
        load(first);
        store(bits, first);
      }
    }
  }

 private:
  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int part = first + i;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int cell_column = kColumns % kCellSize == 0 ? group / 2 : (first_group_ % 2 + group) / 2;
        const std::uint32_t cell = __shfl_sync(~0U, own_cell_, part / 2 * kCellColumns + cell_column);
        const int half = (first_group_ + group) % 2;
        words_[i][group] = __ldg(row_words(cells_, cell) + half * kCellSize + part % 2 * 32 + lane_);
      }
    }
  }

  __device__ __forceinline__ void store(FragmentBits<kRows>& bits, int first) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) store(bits.words + (first + i) * 32 + lane_, words_[i]);
  }

  static __device__ __forceinline__ void store(std::uint32_t* to, const std::uint32_t (&words)[4]) {
    constexpr unsigned kLowBytes = 0x5140, kHighBytes = 0x7362, kLowHalves = 0x5410, kHighHalves = 0x7632;
    const std::uint32_t low[2] = {__byte_perm(words[0], words[1], kLowBytes),
                                  __byte_perm(words[2], words[3], kLowBytes)};
    const std::uint32_t high[2] = {__byte_perm(words[0], words[1], kHighBytes),
                                   __byte_perm(words[2], words[3], kHighBytes)};
    constexpr int kPitch = FragmentBits<kRows>::kPitch;
    to[0] = __byte_perm(low[0], low[1], kLowHalves);
    to[kPitch] = __byte_perm(low[0], low[1], kHighHalves);
    to[2 * kPitch] = __byte_perm(high[0], high[1], kLowHalves);
    to[3 * kPitch] = __byte_perm(high[0], high[1], kHighHalves);
  }

  std::uint32_t words_[kParts][4] = {};  // words of row 32 part + lane
  const CellsView& cells_;
  int first_group_, lane_;
  std::uint32_t own_cell_;
};

}  // namespace flashmask::cuda::sm90
