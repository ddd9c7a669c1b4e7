// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "flashmask/schedule.h"

namespace flashmask {

/// Dense booleans [batch, heads, rows, columns], 1 = visible, and the mask they stand for.
struct DenseMask {
  MaskShape shape;
  std::vector<std::uint8_t> visible;

  std::uint8_t at(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
    return visible[static_cast<std::size_t>(((batch * shape.heads + head) * shape.rows + row) * shape.columns +
                                            column)];
  }
};

/// Kinds of one mask head's tiles, row by row.
struct TileKinds {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<TileKind> kinds;

  TileKinds(std::int64_t row_tiles, std::int64_t column_tiles)
      : rows(row_tiles),
        columns(column_tiles),
        kinds(static_cast<std::size_t>(row_tiles * column_tiles), TileKind::skip) {}

  TileKind& at(std::int64_t row, std::int64_t column) {
    return kinds[static_cast<std::size_t>(row * columns + column)];
  }
};

/// By looking at every score.
inline TileKind brute_force_kind(const DenseMask& mask, std::int64_t batch, std::int64_t head, TileShape tile,
                                 std::int64_t row_tile, std::int64_t column_tile) {
  bool any = false;
  bool all = true;
  for (std::int64_t i = row_tile * tile.rows; i < std::min((row_tile + 1) * tile.rows, mask.shape.rows); ++i) {
    for (std::int64_t j = column_tile * tile.columns;
         j < std::min((column_tile + 1) * tile.columns, mask.shape.columns); ++j) {
      any |= mask.at(batch, head, i, j) != 0;
      all &= mask.at(batch, head, i, j) != 0;
    }
  }
  if (all) return TileKind::full;
  return any ? TileKind::partial : TileKind::skip;
}

inline TileKinds brute_force_kinds(const DenseMask& mask, std::int64_t batch, std::int64_t head, TileShape tile) {
  TileKinds kinds((mask.shape.rows + tile.rows - 1) / tile.rows,
                  (mask.shape.columns + tile.columns - 1) / tile.columns);
  for (std::int64_t i = 0; i < kinds.rows; ++i) {
    for (std::int64_t j = 0; j < kinds.columns; ++j) kinds.at(i, j) = brute_force_kind(mask, batch, head, tile, i, j);
  }
  return kinds;
}

}  // namespace flashmask
