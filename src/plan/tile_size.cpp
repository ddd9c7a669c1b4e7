// SPDX-License-Identifier: Apache-2.0
#include "plan/tile_size.h"

#include <algorithm>
#include <cmath>

#include "base/tile_shape.h"
#include "flashmask/schedule.h"

namespace flashmask {
namespace {

std::int64_t lists(const MaskShape& shape) { return shape.batch * shape.heads; }

/// Returns the bytes of a flat map (cuda/plan/tile_map.h) for one batch entry and head: two bits per tile, in words of
/// 32 tiles along a list.
std::int64_t map_bytes(std::int64_t outer, std::int64_t inner) {
  return outer * ((inner + 31) / 32) * 2 * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

bool has_maps(const MaskShape& shape, const SmallTiles& when) {
  const std::int64_t rows = row_tiles(shape, when.small), columns = column_tiles(shape, when.small);
  const std::int64_t by_rows = lists(shape) * map_bytes(rows, columns);
  const std::int64_t by_columns = when.by_columns_too ? lists(shape) * map_bytes(columns, rows) : by_rows;
  return by_rows > 0 && by_columns > 0 && std::max(by_rows, by_columns) <= static_cast<std::int64_t>(when.most_bytes);
}

}  // namespace

TileSize size_for(const LoweredMask& mask, const SmallTiles& when, Executor& executor) {
  if (!has_maps(mask.shape(), when)) return TileSize::large;
  const auto visited = [&](TileShape tile) {
    return static_cast<float>(schedule(mask, tile, Visit::active, executor).counts().active());
  };
  const float of_own = when.limit == 0 ? 0 : visited(when.own);
  // With a single rounding, as on the device.
  return visited(when.small) < std::fma(when.limit, of_own, when.allowance(mask.shape())) ? TileSize::small
                                                                                          : TileSize::large;
}

}  // namespace flashmask
