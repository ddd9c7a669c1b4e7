// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/common/mask_reads.cuh"
#include "cuda/sm90/instructions/ptx.h"
#include "cuda/sm90/masks/column_intervals.cuh"
#include "flashmask/mask_shape.h"

namespace flashmask::cuda::sm90 {

/// Makes the same words as ColumnIntervals, from a mask of cells. The producer calls copy() for each tile that needs a
/// mask, and the copy engine brings the words of its cells along with its rows: kCopiedBytes more on the barrier of the
/// stage. Consumers call load().
template <int kRows, int kColumns, int kStages>
class ColumnBits {
  static constexpr int kCellRows = kRows / kCellSize, kCellColumns = kColumns / kCellSize;
  static constexpr int kWordsOfColumns = DeviceBits::kCellWords / 2;

 public:
  using Words = ColumnWords<kRows>;
  static constexpr int kCopiedBytes = kCellRows * kCellColumns * kWordsOfColumns * 4;
  struct alignas(16) Memory {
    std::uint32_t cells[kStages][kCellColumns][kCellRows][kWordsOfColumns];
  };

  /// Called by all lanes of a warp.
  static __device__ __forceinline__ void copy(Memory& memory, const MaskView& mask, const MaskedTile& tile,
                                              std::uint64_t* barrier) {
    const int lane = lane_index();
    if (lane >= kCellRows * kCellColumns) return;
    const int row = lane % kCellRows, column = lane / kCellRows;
    const std::uint32_t cell =
        find_cell(mask.cells, tile.list, tile.first_row / kCellSize + row, tile.first_key / kCellSize + column);
    copy_bytes(memory.cells[tile.stage][column][row], column_words(mask.cells, cell), kWordsOfColumns * 4, barrier);
  }

  __device__ __forceinline__ ColumnBits(const Memory& memory, const MaskView&, int own_keys)
      : memory_(memory), own_keys_(own_keys) {}

  __device__ __forceinline__ void begin_keys(int, int) {}

  __device__ __forceinline__ void load(std::uint32_t (&words)[Words::kWords], const MaskedTile& tile) const {
    find_words(words, memory_.cells[tile.stage][own_keys_ / kCellSize][0] + own_keys_ % kCellSize);
  }

  /// The words of a tile's one cell, which one warp reads for the others.
  class Keys {
    static_assert(kCellRows * kCellColumns == 1);
    static constexpr int kOwn = kWordsOfColumns / 32;

   public:
    __device__ __forceinline__ Keys(const MaskView& mask, const MaskedTile& tile) {
      const std::uint32_t cell =
          find_cell(mask.cells, tile.list, tile.first_row / kCellSize, tile.first_key / kCellSize);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) words_[i] = __ldg(column_words(mask.cells, cell) + 32 * i + lane_index());
    }
    __device__ __forceinline__ void store(Memory& memory) const {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) memory.cells[0][0][0][32 * i + lane_index()] = words_[i];
    }

   private:
    std::uint32_t words_[kOwn];
  };

  /// Makes the words from what Keys stored; `own_keys`: the first of the warp's 16 keys, counted from the tile's first.
  static __device__ __forceinline__ void find_words(std::uint32_t (&words)[Words::kWords], const Memory& memory,
                                                    int own_keys, int) {
    find_words(words, memory.cells[0][0][0] + own_keys);
  }

 private:
  /// Takes the thread's byte of each word of 32 rows.
  static __device__ __forceinline__ void find_words(std::uint32_t (&words)[Words::kWords], const std::uint32_t* cells) {
    const int lane = lane_index();
    const std::uint32_t* of_key = cells + lane / 4;
    const unsigned byte = lane % 4, bytes = byte | (byte + 4) << 4;
    constexpr unsigned kLowHalves = 0x5410;
    std::uint32_t halves[2][kCellRows];
#pragma unroll
    for (int key = 0; key < 2; ++key) {
#pragma unroll
      for (int row = 0; row < kCellRows; ++row) {
        const std::uint32_t* own = of_key + row * kWordsOfColumns + 8 * key;
        halves[key][row] = __byte_perm(own[0], own[kCellSize], bytes);
      }
    }
    if constexpr (kRows == 64) {
      words[0] = __byte_perm(halves[0][0], halves[1][0], kLowHalves);
    } else {
      words[0] = __byte_perm(halves[0][0], halves[0][1], kLowHalves);
      words[1] = __byte_perm(halves[1][0], halves[1][1], kLowHalves);
    }
  }

  const Memory& memory_;
  int own_keys_;
};

template <MaskForm kForm, int kRows, int kColumns, int kStages, bool kKeepsIntervals = true>
using ColumnMask = std::conditional_t<kForm == MaskForm::intervals, ColumnIntervals<kRows, kColumns, kKeepsIntervals>,
                                      ColumnBits<kRows, kColumns, kStages>>;

}  // namespace flashmask::cuda::sm90
