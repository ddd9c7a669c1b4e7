// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/units.h"

/// The parts of a plan that kernels of GPUs are given as they are: pointers to arrays in device memory.
namespace flashmask {

/// The kinds of 32 neighbouring cells in a row of cells.
struct alignas(16) CellEntry {
  std::uint32_t stored;  ///< bit i: the words of cell i are stored
  std::uint32_t full;    ///< bit i: cell i is visible throughout; set in neither: masked
  std::uint32_t first;   ///< number of the first stored cell; the others follow it
  std::uint32_t unused;
};

/// A mask as bits: cells of 64 × 64 scores, read through cuda/common/mask_reads.cuh.
struct DeviceBits {
  static constexpr int kCellWords = 256;  ///< 64 × 64 bits by rows, then the same bits by columns
  /// Cells after the stored ones, shared by all cells that are masked throughout, visible throughout, or visible
  /// throughout in the last column of cells, where everything past the end is masked.
  enum Shared : std::uint32_t { kSkipped, kFull, kFullAtEnd, kShared };

  const std::uint32_t* words;  ///< [stored + kShared, kCellWords]
  const CellEntry* index;  ///< [batch, heads, rows of cells, ⌈columns of cells / 32⌉]; nullptr: all cells are stored
  std::uint32_t stored;
};

/// Between which column tiles each row tile of a map is visited, in any batch entry and head; in device memory.
struct DeviceRowSpans {
  const std::int32_t* from = nullptr;   ///< the first column tile that visits this row tile or a later one
  const std::int32_t* until = nullptr;  ///< the end of those that visit this row tile or an earlier one
};

/// The units of one axis (base/units.h), in device memory.
struct DeviceUnits {
  const Unit* units = nullptr;    ///< [batch of the mask, units of an entry]; nullptr: a token's place is its number
  std::int32_t entry_stride = 0;  ///< units of an entry, or 0 if batch entries share them
  std::int32_t size = 1;          ///< places of a unit
  std::int32_t tokens = 0;        ///< of the axis
  /// [1]: units of the entry that has most, where those behind them are empty and hold no work; nullptr: all may.
  const std::int32_t* used = nullptr;
};

}  // namespace flashmask
