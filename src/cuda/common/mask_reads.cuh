// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/views/plan.h"
#include "mask/cell_words.h"

/// How kernels read a mask of intervals, and one of cells.
namespace flashmask::cuda {

/// Loads a column's two ranges of masked rows: begin, end, begin, end. Past the last column every row is masked.
__device__ __forceinline__ void load_intervals(const MaskView& mask, int list, int column, std::int32_t (&ends)[4]) {
  const bool exists = column < mask.columns;
  const std::int64_t at = static_cast<std::int64_t>(list) * mask.columns + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) ends[i] = exists ? __ldg(mask.intervals[i] + at) : i == 1 ? 1 << 30 : 0;
}

/// Returns where a cell's bits lie in `words`, counted in cells: in its own cell or, where only partial cells are
/// stored, in the one that all masked or all visible cells share.
__device__ __forceinline__ std::uint32_t find_cell(const CellsView& cells, int list, int cell_row, int cell_column) {
  if (cell_row >= cells.rows || cell_column >= cells.columns) return cells.bits.stored + DeviceBits::kSkipped;
  const std::int64_t row = static_cast<std::int64_t>(list) * cells.rows + cell_row;
  if (cells.bits.index == nullptr) return static_cast<std::uint32_t>(row * cells.columns + cell_column);
  const std::int64_t at = row * ((cells.columns + 31) / 32) + cell_column / 32;
  const uint4 entry = __ldg(reinterpret_cast<const uint4*>(cells.bits.index) + at);
  const CellEntry found{entry.x, entry.y, entry.z, entry.w};
  const std::uint32_t bit = 1U << cell_column % 32;
  if (found.stored & bit) return found.first + __popc(found.stored & (bit - 1));
  const bool full = (found.full & bit) != 0, last = cell_column + 1 == cells.columns;
  return cells.bits.stored + (!full ? DeviceBits::kSkipped : last ? DeviceBits::kFullAtEnd : DeviceBits::kFull);
}

/// [half][64]: word r of half h has columns 32 h … 32 h + 31 of row r in fragment order, 1 = masked.
__device__ __forceinline__ const std::uint32_t* row_words(const CellsView& cells, std::uint32_t cell) {
  return cells.bits.words + static_cast<std::int64_t>(cell) * DeviceBits::kCellWords;
}

/// [half][64]: word c of half h has rows 32 h … 32 h + 31 of column c, in the same way.
__device__ __forceinline__ const std::uint32_t* column_words(const CellsView& cells, std::uint32_t cell) {
  return row_words(cells, cell) + DeviceBits::kCellWords / 2;
}

}  // namespace flashmask::cuda
