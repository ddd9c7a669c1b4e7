// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/fragment_words.cuh"
#include "cuda/common/mask_reads.cuh"
#include "cuda/instructions/mma.h"

namespace flashmask::cuda {

/// Issues the copies of a tile's mask, by kThreads threads of which this is number `thread`. Columns past the last are
/// masked in every row. After the wait and a barrier, words_from_intervals() or words_from_cells() read the mask.
template <int kThreads, int kRows, int kColumns>
__device__ __forceinline__ void copy_mask(SharedMask<kRows, kColumns>& out, const MaskView& mask, int list,
                                          int first_row, int first_column, unsigned thread) {
  if (mask.intervals[0] != nullptr) {
    static_assert(4 * kColumns % kThreads == 0 || kThreads % (4 * kColumns) == 0);
#pragma unroll
    for (unsigned i = thread; i < 4 * kColumns; i += kThreads) {
      const unsigned end = i / kColumns, column = i % kColumns;
      if (first_column + static_cast<int>(column) < mask.columns) {
        const std::int64_t at = static_cast<std::int64_t>(list) * mask.columns + first_column + column;
        copy_4(shared_address(&out.ends[end][column]), mask.intervals[end] + at);
      } else {
        out.ends[end][column] = end == 1 ? 1 << 30 : 0;
      }
    }
  } else {
    constexpr unsigned kCells = kRows / 64 * (kColumns / 64), kCopies = kCells * 32;
#pragma unroll
    for (unsigned i = thread; i < kCopies; i += kThreads) {
      const unsigned cell = i / 32, row = cell / (kColumns / 64), column = cell % (kColumns / 64);
      const std::uint32_t found = find_cell(mask.cells, list, first_row / 64 + static_cast<int>(row),
                                            first_column / 64 + static_cast<int>(column));
      copy_16(shared_address(&out.cells[row][column][0][0]) + i % 32 * 16, row_words(mask.cells, found) + i % 32 * 4,
              true);
    }
  }
}

}  // namespace flashmask::cuda
