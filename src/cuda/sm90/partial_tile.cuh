#pragma once

#include "cuda/bit_cells.cuh"
#include "flashmask/mask.h"

/// What a warp makes of a partial tile, from a mask of either form. Kernels know no more of a mask than that.
namespace flashmask::cuda::sm90 {

/// Bits of a partial tile in the order of accumulators: word [q][row] holds the columns 8 i + 2 q and 8 i + 2 q + 1 of
/// a row at bits 2 i and 2 i + 1, 1 = masked. The padding keeps builders and consumers off each other's banks.
template <int kRows>
struct TileBits {
  static constexpr int kPitch = kRows + 8;
  alignas(16) std::uint32_t words[4 * kPitch];
};

/// PartialTile<form, rows, columns>(mask, list, first row, first column): loads what it needs of the mask, for build().
/// What lies past the last column is masked in every row.
template <MaskForm kForm, int kRows, int kColumns>
class PartialTile;

template <int kRows, int kColumns>
class PartialTile<MaskForm::intervals, kRows, kColumns> {
 public:
  __device__ __forceinline__ PartialTile(const MaskView& mask, int list, int first_row, int first_column)
      : first_row_(first_row), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kColumns / 32; ++i) load_intervals(mask, list, first_column + 32 * i + lane_, ends_[i]);
  }

  /// Marks the rows where a column turns masked or visible, then sums along the rows, modulo 2.
  __device__ __forceinline__ void build(TileBits<kRows>& bits) const {
    for (int i = lane_; i < TileBits<kRows>::kPitch; i += 32) reinterpret_cast<uint4*>(bits.words)[i] = {0, 0, 0, 0};
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kColumns / 32; ++i) mark_column(bits, ends_[i], 32 * i + lane_);
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q) sum_rows(bits.words + q * TileBits<kRows>::kPitch);
  }

 private:
  /// What lies past the last column is masked in every row.
  static __device__ __forceinline__ void load_intervals(const MaskView& mask, int list, int column,
                                                        std::int32_t (&ends)[4]) {
    const bool exists = column < mask.columns;
    const std::int64_t at = static_cast<std::int64_t>(list) * mask.columns + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) ends[i] = exists ? __ldg(mask.intervals[i] + at) : i == 1 ? 1 << 30 : 0;
  }

  __device__ __forceinline__ void mark_column(TileBits<kRows>& bits, const std::int32_t (&ends)[4], int column) const {
    std::uint32_t* words = bits.words + column % 8 / 2 * TileBits<kRows>::kPitch;
    const std::uint32_t bit = 1U << (column / 8 * 2 + column % 2);
#pragma unroll
    for (int range = 0; range < 2; ++range) {
      const int begin = max(ends[2 * range] - first_row_, 0), end = ends[2 * range + 1] - first_row_;
      if (begin >= min(end, kRows)) continue;
      atomicXor(words + begin, bit);
      if (end < kRows) atomicXor(words + end, bit);
    }
  }

  /// words[row] becomes the sum of words[0 … row]; a lane has consecutive rows.
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

  std::int32_t ends_[kColumns / 32][4];  // of a column a lane
  int first_row_, lane_;
};

template <int kRows, int kColumns>
class PartialTile<MaskForm::bits, kRows, kColumns> {
  static constexpr int kGroups = kColumns / 32;  // of columns, a word each
  static constexpr int kCellColumns = kColumns % kCellSize == 0 ? kColumns / kCellSize : kColumns / kCellSize + 1;
  static_assert(kRows % kCellSize == 0 && kColumns % 32 == 0 && kRows / kCellSize * kCellColumns <= 32);

 public:
  __device__ __forceinline__ PartialTile(const MaskView& mask, int list, int first_row, int first_column)
      : lane_(threadIdx.x % 32) {
    const std::uint32_t own = find_cell(mask.cells, list, first_row / kCellSize + lane_ / kCellColumns,
                                        first_column / kCellSize + lane_ % kCellColumns);
    const int first_group = first_column / 32;
#pragma unroll
    for (int part = 0; part < kRows / 32; ++part) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int cell_column = kColumns % kCellSize == 0 ? group / 2 : (first_group % 2 + group) / 2;
        const std::uint32_t cell = __shfl_sync(~0U, own, part / 2 * kCellColumns + cell_column);
        const int half = (first_group + group) % 2;
        words_[part][group] = __ldg(row_words(mask.cells, cell) + half * kCellSize + part % 2 * 32 + lane_);
      }
    }
  }

  /// Cells hold words of 32 columns in the order of fragments; a tile's words take a byte from each.
  __device__ __forceinline__ void build(TileBits<kRows>& bits) const {
#pragma unroll
    for (int part = 0; part < kRows / 32; ++part) store(bits.words + part * 32 + lane_, words_[part]);
  }

 private:
  static __device__ __forceinline__ void store(std::uint32_t* to, const std::uint32_t (&words)[4]) {
    constexpr unsigned kLowBytes = 0x5140, kHighBytes = 0x7362, kLowHalves = 0x5410, kHighHalves = 0x7632;
    const std::uint32_t low[2] = {__byte_perm(words[0], words[1], kLowBytes),
                                  __byte_perm(words[2], words[3], kLowBytes)};
    const std::uint32_t high[2] = {__byte_perm(words[0], words[1], kHighBytes),
                                   __byte_perm(words[2], words[3], kHighBytes)};
    constexpr int kPitch = TileBits<kRows>::kPitch;
    to[0] = __byte_perm(low[0], low[1], kLowHalves);
    to[kPitch] = __byte_perm(low[0], low[1], kHighHalves);
    to[2 * kPitch] = __byte_perm(high[0], high[1], kLowHalves);
    to[3 * kPitch] = __byte_perm(high[0], high[1], kHighHalves);
  }

  std::uint32_t words_[kRows / 32][4] = {};  // of row 32 part + lane
  int lane_;
};

}  // namespace flashmask::cuda::sm90
