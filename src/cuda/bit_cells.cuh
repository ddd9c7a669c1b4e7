#pragma once

#include "cuda/mask_view.h"

/// How kernels read a mask of cells.
namespace flashmask::cuda {

/// Lanes of an accumulator fragment hold columns 2 q and 2 q + 1 of every eight: byte q of a word in this order is what
/// lane q of a quad needs of 32 columns. Twice applied it is the identity.
__device__ __forceinline__ std::uint32_t fragment_order(std::uint32_t word) {
  std::uint32_t swap = (word ^ word >> 6) & 0x00CC00CC;
  word ^= swap ^ swap << 6;
  swap = (word ^ word >> 12) & 0x0000F0F0;
  return word ^ swap ^ swap << 12;
}

/// Cells that are not stored.
constexpr std::uint32_t kFullCell = ~1U, kSkippedCell = ~0U;

/// Which of the stored cells it is, or one of the two above.
__device__ __forceinline__ std::uint32_t find_cell(const BitCells& cells, int list, int cell_row, int cell_column) {
  if (cell_row >= cells.cell_rows || cell_column >= cells.cell_columns) return kSkippedCell;
  const std::int64_t row = static_cast<std::int64_t>(list) * cells.cell_rows + cell_row;
  if (cells.bits.index == nullptr) return static_cast<std::uint32_t>(row * cells.cell_columns + cell_column);
  const std::int64_t at = row * ((cells.cell_columns + 31) / 32) + cell_column / 32;
  const uint4 entry = __ldg(reinterpret_cast<const uint4*>(cells.bits.index) + at);
  const CellEntry found{entry.x, entry.y, entry.z, entry.w};
  const std::uint32_t bit = 1U << cell_column % 32;
  if (found.stored & bit) return found.first + __popc(found.stored & (bit - 1));
  return found.full & bit ? kFullCell : kSkippedCell;
}

/// Word `at` of a cell. Of one that is visible throughout, `present` of the 32 scores lie before the mask's end.
__device__ __forceinline__ std::uint32_t cell_word(const BitCells& cells, std::uint32_t cell, int at, int present) {
  if (cell < kFullCell) return __ldg(cells.bits.words + static_cast<std::int64_t>(cell) * DeviceBits::kCellWords + at);
  if (cell == kSkippedCell || present <= 0) return ~0U;
  return present >= 32 ? 0 : fragment_order(~0U << present);
}

/// Columns 32 half … 32 half + 31 of a row of a cell, in the order of fragments, 1 = masked.
__device__ __forceinline__ std::uint32_t row_word(const BitCells& cells, std::uint32_t cell, int half, int row,
                                                  int present) {
  return cell_word(cells, cell, half * kCellSize + row, present);
}

/// Rows 32 half … 32 half + 31 of a column of a cell, likewise.
__device__ __forceinline__ std::uint32_t column_word(const BitCells& cells, std::uint32_t cell, int half, int column,
                                                     int present) {
  return cell_word(cells, cell, DeviceBits::kCellWords / 2 + half * kCellSize + column, present);
}

}  // namespace flashmask::cuda
