// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/checks.h"
#include "flashmask/mask_shape.h"
#include "flashmask/tile.h"

namespace flashmask {

inline std::int64_t row_tiles(const MaskShape& shape, TileShape tile) {
  return (shape.rows + tile.rows - 1) / tile.rows;
}

inline std::int64_t column_tiles(const MaskShape& shape, TileShape tile) {
  return (shape.columns + tile.columns - 1) / tile.columns;
}

inline void require_tile_shape(const char* function, TileShape tile) {
  if (tile.rows > 0 && tile.columns > 0) return;
  refuse(std::string(function) + ": tile is " + grouped(tile.rows) + " x " + grouped(tile.columns) +
         "; give at least one row and one column");
}

}  // namespace flashmask
