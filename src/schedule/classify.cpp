// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/checks.h"
#include "base/tile_shape.h"
#include "flashmask/error.h"
#include "flashmask/schedule.h"

namespace flashmask {
namespace {

void require_index(const char* name, std::int64_t given, std::int64_t count) {
  if (given >= 0 && given < count) return;
  refuse("classify: " + std::string(name) + " is " + grouped(given) + "; the mask has " + grouped(count) +
         ", counted from 0");
}

}  // namespace

TileKind classify(const LoweredMask& mask, std::int64_t batch, std::int64_t head, TileShape tile, std::int64_t row_tile,
                  std::int64_t column_tile) {
  const MaskShape& shape = mask.shape();
  require_tile_shape("classify", tile);
  require_index("batch", batch, shape.batch);
  require_index("head", head, shape.heads);
  require_index("row_tile", row_tile, row_tiles(shape, tile));
  require_index("column_tile", column_tile, column_tiles(shape, tile));

  const std::int64_t row_begin = row_tile * tile.rows;
  const std::int64_t row_end = std::min(row_begin + tile.rows, shape.rows);
  const std::int64_t column_begin = column_tile * tile.columns;
  const std::int64_t column_end = std::min(column_begin + tile.columns, shape.columns);
  std::int64_t visible = 0;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    for (std::int64_t column = column_begin; column < column_end; ++column) {
      visible += mask.visible(batch, head, row, column) ? 1 : 0;
    }
  }
  if (visible == 0) return TileKind::skip;
  return visible == (row_end - row_begin) * (column_end - column_begin) ? TileKind::full : TileKind::partial;
}

std::string to_string(TileKind kind) {
  switch (kind) {
    case TileKind::skip:
      return "skip";
    case TileKind::full:
      return "full";
    case TileKind::partial:
      return "partial";
  }
  throw Error(Status::internal, "to_string: TileKind has no value " + std::to_string(static_cast<int>(kind)));
}

}  // namespace flashmask
