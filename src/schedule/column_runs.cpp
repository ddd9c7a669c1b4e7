#include "schedule/column_runs.h"

#include <algorithm>
#include <span>

#include "schedule/changed_tiles.h"
#include "schedule/tile_shape.h"

namespace flashmask {
namespace {

/// Counts, for every tile of one column of tiles, how many masked ranges cover it and how many touch it. A column's
/// ranges neither overlap nor touch (normal form), so a tile is masked in a column exactly when one range covers it:
/// covered by as many as there are columns: skip; touched by none: full.
///
/// Only changes from one tile to the next are kept. A range [b, e) touches the tiles ⌊b/R⌋ … ⌈e/R⌉ − 1 and covers
/// ⌈b/R⌉ … ⌊e/R⌋ − 1, so b and e count on their own. For a range inside one tile the second span runs backwards and
/// counts −1 there: that tile cannot be covered in that column anyway. Empty ranges {0, 0} cancel.
class TileCounter {
 public:
  TileCounter(std::int64_t rows, std::int32_t tile_rows)
      : rows_(static_cast<std::uint32_t>(rows)),
        tile_rows_(static_cast<std::uint32_t>(tile_rows)),
        tiles_(rows_ == 0 ? 0 : (rows_ - 1) / tile_rows_ + 1),
        changes_(tiles_ + 1),
        changed_(tiles_ + 1) {}

  void add_begins(std::span<const std::int32_t> rows) { add(rows, &Change::touched, &Change::covered, 1); }
  void add_ends(std::span<const std::int32_t> rows) { add(rows, &Change::covered, &Change::touched, -1); }

  /// Appends the runs of what was counted over `columns` columns, and starts anew.
  void drain(std::int32_t columns, std::vector<Run>& runs) {
    const std::size_t first = runs.size();
    Change sum;
    std::int32_t begin = 0;
    const auto append = [&](std::int32_t end) {
      const TileKind kind = kind_of(sum, columns);
      if (begin == end || kind == TileKind::skip) return;
      const bool extends = runs.size() > first && runs.back().end == begin && runs.back().kind == kind;
      if (extends) {
        runs.back().end = end;
      } else {
        runs.push_back({begin, end, kind});
      }
    };
    changed_.drain([&](std::size_t tile) {
      append(static_cast<std::int32_t>(tile));
      begin = static_cast<std::int32_t>(tile);
      sum.covered += changes_[tile].covered;
      sum.touched += changes_[tile].touched;
      changes_[tile] = {};
    });
    append(static_cast<std::int32_t>(tiles_));
  }

 private:
  struct Change {
    std::int32_t covered = 0;
    std::int32_t touched = 0;
  };

  static TileKind kind_of(const Change& sum, std::int32_t columns) {
    if (sum.covered == columns) return TileKind::skip;
    return sum.touched == 0 ? TileKind::full : TileKind::partial;
  }

  /// `at_floor` changes at the tile that holds the row, `at_ceiling` at the first tile that starts at it or below it.
  /// Neighbouring columns mostly end in the same tile, so they are added together.
  void add(std::span<const std::int32_t> rows, std::int32_t Change::*at_floor, std::int32_t Change::*at_ceiling,
           std::int32_t sign) {
    for (auto row = rows.begin(); row != rows.end();) {
      const std::uint32_t tile = grid_row(*row) / tile_rows_;
      const std::uint32_t tile_begin = tile * tile_rows_;
      std::int32_t inside = 0;
      std::int32_t on_edge = 0;
      for (; row != rows.end() && grid_row(*row) - tile_begin < tile_rows_; ++row) {
        ++inside;
        on_edge += grid_row(*row) == tile_begin;
      }
      change(tile, at_floor, sign * inside);
      change(tile, at_ceiling, sign * on_edge);
      change(tile + 1, at_ceiling, sign * (inside - on_edge));
    }
  }

  /// The mask's end is the end of its last tile, however ragged.
  std::uint32_t grid_row(std::int32_t row) const {
    const auto unsigned_row = static_cast<std::uint32_t>(row);
    return unsigned_row == rows_ ? tiles_ * tile_rows_ : unsigned_row;
  }

  void change(std::uint32_t tile, std::int32_t Change::*sum, std::int32_t by) {
    if (by == 0) return;
    changes_[tile].*sum += by;
    changed_.insert(tile);
  }

  std::uint32_t rows_;
  std::uint32_t tile_rows_;
  std::uint32_t tiles_;
  std::vector<Change> changes_;  ///< [tiles + 1]
  ChangedTiles changed_;
};

}  // namespace

RunLists column_runs(const IntervalMask& mask, TileShape tile, std::int64_t begin, std::int64_t end) {
  const MaskShape& shape = mask.shape();
  const std::int64_t tiles = column_tiles(shape, tile);
  TileCounter counter(shape.rows, tile.rows);
  RunLists lists;
  lists.offsets.reserve(static_cast<std::size_t>(end - begin + 1));
  lists.offsets.push_back(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first_column = i % tiles * tile.columns;
    const std::int64_t columns = std::min<std::int64_t>(tile.columns, shape.columns - first_column);
    const std::int64_t first = i / tiles * shape.columns + first_column;
    const auto slice = [&](const std::int32_t* values) {
      return std::span(values + first, static_cast<std::size_t>(columns));
    };
    counter.add_begins(slice(mask.first_begin()));
    counter.add_ends(slice(mask.first_end()));
    counter.add_begins(slice(mask.second_begin()));
    counter.add_ends(slice(mask.second_end()));
    counter.drain(static_cast<std::int32_t>(columns), lists.runs);
    lists.offsets.push_back(static_cast<std::int64_t>(lists.runs.size()));
  }
  return lists;
}

}  // namespace flashmask
