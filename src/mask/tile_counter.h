// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/changed_tiles.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Counts, for every tile of one column of tiles, how many masked ranges cover it and how many touch it. The ranges of
/// a column of scores neither overlap nor touch, so a tile is masked in that column exactly when one range covers it. A
/// tile covered by as many ranges as there are columns is skipped; a tile touched by none is full.
///
/// Only changes from one tile to the next are kept. A range [b, e) touches the tiles ⌊b/R⌋ … ⌈e/R⌉ − 1 and covers
/// ⌈b/R⌉ … ⌊e/R⌋ − 1, so b and e count on their own. For a range inside one tile the second span has its ends the
/// wrong way round and counts −1 there, which does no harm: that tile cannot be covered in that column anyway. Empty
/// ranges {0, 0} cancel.
class TileCounter {
 public:
  TileCounter(std::int64_t rows, std::int32_t tile_rows);

  /// Adds the first rows of masked ranges, from any columns.
  void add_begins(std::span<const std::int32_t> rows) { add(rows, &Change::touched, &Change::covered, 1); }
  /// Adds the ends of the same ranges.
  void add_ends(std::span<const std::int32_t> rows) { add(rows, &Change::covered, &Change::touched, -1); }

  /// Appends the runs that the ranges of `columns` columns give, and starts anew.
  void drain(std::int32_t columns, std::vector<Run>& runs);

 private:
  struct Change {
    std::int32_t covered = 0;
    std::int32_t touched = 0;
  };

  static TileKind kind_of(const Change& sum, std::int32_t columns);

  /// `at_floor` changes at the tile that holds the row, `at_ceiling` at the first tile that starts at it or below it.
  void add(std::span<const std::int32_t> rows, std::int32_t Change::*at_floor, std::int32_t Change::*at_ceiling,
           std::int32_t sign);
  void change(std::uint32_t tile, std::int32_t Change::*sum, std::int32_t by);

  /// Moves the mask's end to the end of its last tile, however ragged; leaves other rows alone.
  std::uint32_t grid_row(std::int32_t row) const {
    const auto unsigned_row = static_cast<std::uint32_t>(row);
    return unsigned_row == rows_ ? tiles_ * tile_rows_ : unsigned_row;
  }

  std::uint32_t rows_;
  std::uint32_t tile_rows_;
  std::uint32_t tiles_;
  std::vector<Change> changes_;  ///< [tiles + 1]
  ChangedTiles changed_;
};

}  // namespace flashmask
