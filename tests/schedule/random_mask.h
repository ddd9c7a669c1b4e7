// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>

#include "flashmask/mask.h"
#include "schedule/tile_kinds.h"

namespace flashmask {

/// An interval mask and, filled in on its own, the dense mask it must equal.
struct RandomMask {
  LoweredMask lowered;
  DenseMask dense;
};

/// Random masks with what is hard in them: ranges misordered, overlapping, empty, out of range or ending at tile
/// edges, neighbours that share them, one or two ranges a column, every column alike.
class RandomMasks {
 public:
  explicit RandomMasks(unsigned seed) : random_(seed) {}

  std::int64_t below(std::int64_t limit) { return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_); }

  RandomMask next(const MaskShape& shape, TileShape tile) {
    auto intervals = std::make_shared<IntervalMask>(shape);
    DenseMask dense{shape, {}};
    dense.visible.assign(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns), 1);
    const std::int64_t keep = below(4) * 33;  // percent of columns that repeat the one before
    const bool two_ranges = below(2) == 0;
    Interval a, b;
    for (std::int64_t column = 0; column < shape.batch * shape.heads * shape.columns; ++column) {
      if (column == 0 || below(100) >= keep) {
        a = range(shape.rows, tile);
        b = two_ranges ? range(shape.rows, tile) : Interval{};
      }
      intervals->set(static_cast<std::size_t>(column), a, b);
      mask_out(dense, column, a);
      mask_out(dense, column, b);
    }
    return {LoweredMask(std::move(intervals), "random"), std::move(dense)};
  }

  /// Visible rectangles over nothing, single scores among them, some at cell edges.
  DenseMask rectangles(const MaskShape& shape) {
    DenseMask dense{shape, {}};
    dense.visible.assign(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns), 0);
    const auto edge = [&](std::int64_t end) { return below(2) == 0 ? below(end / 64 + 1) * 64 : below(end + 1); };
    for (std::int64_t i = below(12); i > 0; --i) {
      const std::int64_t head = below(shape.batch * shape.heads), row = edge(shape.rows), column = edge(shape.columns);
      const std::int64_t rows = below(3) == 0 ? 1 : edge(shape.rows), columns = below(3) == 0 ? 1 : edge(shape.columns);
      for (std::int64_t r = row; r < std::min(row + rows, shape.rows); ++r) {
        for (std::int64_t c = column; c < std::min(column + columns, shape.columns); ++c) {
          dense.visible[static_cast<std::size_t>((head * shape.rows + r) * shape.columns + c)] = 1;
        }
      }
    }
    return dense;
  }

 private:
  /// Often the mask's edge, a tile's edge or one row beside it.
  std::int32_t end_point(std::int64_t rows, TileShape tile) {
    switch (below(6)) {
      case 0:
        return 0;
      case 1:
        return static_cast<std::int32_t>(rows);
      case 2:
        return static_cast<std::int32_t>(below(rows / tile.rows + 2) * tile.rows);
      case 3:
        return static_cast<std::int32_t>(below(rows / tile.rows + 2) * tile.rows + below(3) - 1);
      default:
        return static_cast<std::int32_t>(below(rows + 21) - 10);
    }
  }

  Interval range(std::int64_t rows, TileShape tile) { return {end_point(rows, tile), end_point(rows, tile)}; }

  static void mask_out(DenseMask& dense, std::int64_t column, Interval range) {
    const std::int64_t head = column / dense.shape.columns;
    for (std::int64_t row = std::max(range.begin, 0); row < std::min<std::int64_t>(range.end, dense.shape.rows);
         ++row) {
      dense.visible[static_cast<std::size_t>((head * dense.shape.rows + row) * dense.shape.columns +
                                             column % dense.shape.columns)] = 0;
    }
  }

  std::mt19937 random_;
};

}  // namespace flashmask
