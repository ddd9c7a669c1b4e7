// SPDX-License-Identifier: Apache-2.0
#include "schedule/bit_runs.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/changed_tiles.h"
#include "base/run_builder.h"
#include "base/tile_shape.h"
#include "mask/cell_words.h"

namespace flashmask {
namespace {

/// Half-open range of rows or columns of scores.
struct Scores {
  std::int64_t begin, end;

  std::int64_t count() const { return end - begin; }
  Scores within(Scores other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
};

/// Visible scores in the tiles of one row of tiles. A partial cell that lies in one tile counts as one visible score,
/// which makes its tile neither empty nor full; in a partial cell divided among tiles, every visible score is counted.
class RowOfTiles {
 public:
  RowOfTiles(const BitMask& mask, TileShape tile)
      : mask_(mask),
        tile_(tile),
        visible_(static_cast<std::size_t>(column_tiles(mask.shape(), tile))),
        touched_(std::ssize(visible_)) {}

  void count(std::int64_t batch, std::int64_t head, Scores rows) {
    for (std::int64_t cell_row = rows.begin / kCellSize; cell_row * kCellSize < rows.end; ++cell_row) {
      const Scores part = rows.within(cell_scores(cell_row, mask_.shape().rows));
      const std::int64_t list = mask_.list(batch, head, cell_row);
      for (std::int64_t i = mask_.cells().begin(list); i < mask_.cells().end(list); ++i) count_run(i, cell_row, part);
    }
  }

  /// Adds the runs of the tiles, `rows` scores high, and starts anew.
  void drain(std::int64_t rows, RunBuilder& out) {
    touched_.drain([&](std::size_t i) {
      const auto tile = static_cast<std::int32_t>(i);
      const bool all = visible_[i] == rows * tile_columns(tile).count();
      if (visible_[i] != 0) out.add({tile, tile + 1, all ? TileKind::full : TileKind::partial});
      visible_[i] = 0;
    });
  }

 private:
  static Scores cell_scores(std::int64_t cell, std::int64_t end) {
    return {cell * kCellSize, std::min((cell + 1) * kCellSize, end)};
  }
  Scores tile_columns(std::int64_t tile) const {
    return {tile * tile_.columns, std::min((tile + 1) * tile_.columns, mask_.shape().columns)};
  }

  void add(std::int64_t tile, std::int64_t visible) {
    visible_[static_cast<std::size_t>(tile)] += visible;
    touched_.insert(static_cast<std::uint32_t>(tile));
  }

  void count_run(std::int64_t position, std::int64_t cell_row, Scores rows) {
    const Run& run = mask_.cells().run(position);
    if (run.kind == TileKind::full) {
      const Scores columns{run.begin * std::int64_t{kCellSize},
                           std::min(run.end * std::int64_t{kCellSize}, mask_.shape().columns)};
      for_each_tile(columns, [&](std::int64_t tile, Scores part) { add(tile, rows.count() * part.count()); });
      return;
    }
    const bool whole_rows = rows.count() == cell_scores(cell_row, mask_.shape().rows).count();
    for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
      const Scores columns = cell_scores(cell, mask_.shape().columns);
      if (whole_rows && columns.begin / tile_.columns == (columns.end - 1) / tile_.columns) {
        add(columns.begin / tile_.columns, 1);
      } else {
        count_divided(mask_.words(position) + std::int64_t{cell - run.begin} * kCellSize, rows, columns);
      }
    }
  }

  void count_divided(const std::uint64_t* words, Scores rows, Scores columns) {
    for_each_tile(columns, [&](std::int64_t tile, Scores part) {
      const std::uint64_t lanes = range_bits(part.begin - columns.begin, part.end - columns.begin);
      std::int64_t visible = 0;
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        visible += std::popcount(words[row % kCellSize] & lanes);
      add(tile, visible);
    });
  }

  /// Calls body(tile, its share of the columns) for each tile.
  template <class Body>
  void for_each_tile(Scores columns, const Body& body) const {
    for (std::int64_t tile = columns.begin / tile_.columns; tile * tile_.columns < columns.end; ++tile) {
      body(tile, columns.within(tile_columns(tile)));
    }
  }

  const BitMask& mask_;
  TileShape tile_;
  std::vector<std::int64_t> visible_;
  ChangedTiles touched_;
};

}  // namespace

RunLists bit_row_runs(const BitMask& mask, TileShape tile, std::int64_t begin, std::int64_t end) {
  const MaskShape& shape = mask.shape();
  const std::int64_t tiles = row_tiles(shape, tile);
  RowOfTiles row(mask, tile);
  RunBuilder lists;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first = i % tiles * tile.rows;
    const Scores rows{first, std::min<std::int64_t>(first + tile.rows, shape.rows)};
    row.count(i / tiles / shape.heads, i / tiles % shape.heads, rows);
    row.drain(rows.count(), lists);
    lists.end_list();
  }
  return lists.take();
}

}  // namespace flashmask
