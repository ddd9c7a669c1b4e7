// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mask/cell_words.h"
#include "plan/device_plan.h"

/// The mask of a plan as a launch carries it; a kernel reads the form that it was made for.
namespace flashmask::cuda {

/// A mask of cells, read through bit_cells.cuh.
struct CellsView {
  DeviceBits bits;
  int rows, columns;  // counted in cells
};

struct MaskView {
  int rows, columns;
  const std::int32_t* intervals[4];
  CellsView cells;
};

inline MaskView mask_view(const DeviceMask& mask) {
  const auto cells = [](std::int64_t scores) { return static_cast<int>((scores + kCellSize - 1) / kCellSize); };
  return {static_cast<int>(mask.shape.rows),
          static_cast<int>(mask.shape.columns),
          {mask.intervals[0], mask.intervals[1], mask.intervals[2], mask.intervals[3]},
          {mask.bits, cells(mask.shape.rows), cells(mask.shape.columns)}};
}

}  // namespace flashmask::cuda
