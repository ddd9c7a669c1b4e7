// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/mask.h"
#include "flashmask/schedule.h"

namespace flashmask::cli {

/// Rows [0, rows) and columns [0, columns) of one head of a mask, as a grid of square cells of `cell` × `cell` scores;
/// the last row and column of cells may be ragged.
struct MaskRaster {
  std::int64_t rows = 0, columns = 0;
  std::int64_t cell = 1;
  TileShape tile;
  std::vector<float> visible;   ///< [cell rows, cell columns]: the visible fraction of each cell's scores
  std::vector<TileKind> kinds;  ///< same shape: the kind of the tile that holds the cell, or a larger cell's own

  std::int64_t cell_rows() const { return (rows + cell - 1) / cell; }
  std::int64_t cell_columns() const { return (columns + cell - 1) / cell; }
  std::size_t index(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * cell_columns() + column);
  }
};

struct RasterRequest {
  std::int64_t batch = 0, head = 0;
  std::int64_t rows = 0, columns = 0;  ///< the part drawn, from the mask's first row and column
  std::int64_t most_cells = 1;         ///< along the longer side; cells are the smallest power of two that allows it
};

/// Rasterises a mask. Takes time linear in the number of cells and the mask's contents (columns, or bits and runs).
MaskRaster rasterise(const LoweredMask& mask, const TileSchedule& schedule, const RasterRequest& request);

}  // namespace flashmask::cli
