// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/mask_raster.h"

#include <algorithm>
#include <array>
#include <bit>

#include "flashmask/block_map.h"

namespace flashmask::cli {
namespace {

/// Counts the visible scores of every cell.
class CellCounts {
 public:
  explicit CellCounts(const MaskRaster& raster)
      : raster_(raster), counts_(static_cast<std::size_t>(raster.cell_rows() * raster.cell_columns())) {}

  void add(std::int64_t cell_row, std::int64_t cell_column, std::int64_t scores) {
    counts_[raster_.index(cell_row, cell_column)] += scores;
  }

  /// Writes the fraction and, from it, the kind of every cell.
  void store(MaskRaster& raster) const {
    for (std::int64_t row = 0; row < raster.cell_rows(); ++row) {
      for (std::int64_t column = 0; column < raster.cell_columns(); ++column) {
        const std::size_t i = raster.index(row, column);
        const std::int64_t scores = std::min(raster.cell, raster.rows - row * raster.cell) *
                                    std::min(raster.cell, raster.columns - column * raster.cell);
        raster.visible[i] = static_cast<float>(counts_[i]) / static_cast<float>(scores);
        raster.kinds[i] = counts_[i] == 0 ? TileKind::skip : counts_[i] == scores ? TileKind::full : TileKind::partial;
      }
    }
  }

 private:
  const MaskRaster& raster_;
  std::vector<std::int64_t> counts_;
};

/// Counts the visible scores in one column of cells; adding a range of rows takes constant time.
class ColumnCounts {
 public:
  explicit ColumnCounts(const MaskRaster& raster)
      : rows_(raster.rows), cell_(raster.cell), counts_(raster.cell_rows()), whole_(raster.cell_rows() + 1) {}

  void add(Interval visible) {
    const std::int64_t begin = visible.begin, end = std::min<std::int64_t>(visible.end, rows_);
    if (begin >= end) return;
    const std::int64_t first = begin / cell_, last = (end - 1) / cell_;
    if (first == last) {
      at(counts_, first) += end - begin;
      return;
    }
    at(counts_, first) += (first + 1) * cell_ - begin;
    at(counts_, last) += end - last * cell_;
    at(whole_, first + 1) += cell_;
    at(whole_, last) -= cell_;
  }

  void store(std::int64_t cell_column, CellCounts& cells) const {
    std::int64_t whole = 0;
    for (std::size_t row = 0; row < counts_.size(); ++row) {
      whole += whole_[row];
      cells.add(static_cast<std::int64_t>(row), cell_column, counts_[row] + whole);
    }
  }

 private:
  static std::int64_t& at(std::vector<std::int64_t>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }

  std::int64_t rows_, cell_;
  std::vector<std::int64_t> counts_;  ///< from cells in which a range begins or ends
  std::vector<std::int64_t> whole_;   ///< differences, from cells that a range covers
};

/// The visible rows that a column's two masked ranges leave; some intervals may be empty.
std::array<Interval, 3> visible_rows(const IntervalMask& mask, std::size_t index) {
  const Interval first = mask.first(index), second = mask.second(index);
  const auto rows = static_cast<std::int32_t>(mask.shape().rows);
  if (first.empty()) return {{{0, rows}}};
  if (second.empty()) return {{{0, first.begin}, {first.end, rows}}};
  return {{{0, first.begin}, {first.end, second.begin}, {second.end, rows}}};
}

/// Rows that the block map keeps in the column of blocks; all rows without a map.
class KeptRows {
 public:
  KeptRows(const LoweredMask& mask, const RasterRequest& request)
      : map_(mask.blocks()), request_(request), ranges_{{0, static_cast<std::int32_t>(mask.shape().rows)}} {}

  const std::vector<Interval>& at(std::int64_t column) {
    if (map_ != nullptr && column / map_->block() != block_column_) gather(column / map_->block());
    return ranges_;
  }

 private:
  void gather(std::int64_t block_column) {
    block_column_ = block_column;
    ranges_.clear();
    for (std::int64_t row = 0; row < map_->block_rows(); ++row) {
      if (!map_->keeps(request_.batch, request_.head, row, block_column)) continue;
      const auto begin = static_cast<std::int32_t>(row * map_->block());
      const auto end = static_cast<std::int32_t>(std::min((row + 1) * map_->block(), map_->shape().rows));
      if (!ranges_.empty() && ranges_.back().end == begin) {
        ranges_.back().end = end;
      } else {
        ranges_.push_back({begin, end});
      }
    }
  }

  const BlockMap* map_;
  const RasterRequest& request_;
  std::int64_t block_column_ = -1;
  std::vector<Interval> ranges_;
};

void count_intervals(const LoweredMask& mask, const RasterRequest& request, const MaskRaster& raster,
                     CellCounts& cells) {
  KeptRows kept_rows(mask, request);
  for (std::int64_t cell_column = 0; cell_column < raster.cell_columns(); ++cell_column) {
    ColumnCounts counts(raster);
    const std::int64_t begin = cell_column * raster.cell, end = std::min(begin + raster.cell, raster.columns);
    for (std::int64_t column = begin; column < end; ++column) {
      const std::size_t index = mask.intervals().index(request.batch, request.head, column);
      for (const Interval visible : visible_rows(mask.intervals(), index)) {
        for (const Interval kept : kept_rows.at(column)) {
          counts.add({std::max(visible.begin, kept.begin), std::min(visible.end, kept.end)});
        }
      }
    }
    counts.store(cell_column, cells);
  }
}

/// Adds the cells of a BitMask to those of a raster, which may be larger or smaller: both sizes are powers of two.
class BitCounter {
 public:
  BitCounter(const MaskRaster& raster, CellCounts& cells)
      : raster_(raster), cells_(cells), step_(std::min<std::int64_t>(raster.cell, BitMask::kCell)) {}

  /// Adds rows [row, row + 64) × columns [begin, end), all visible.
  void add_full(std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t last_row = std::min(row + BitMask::kCell, raster_.rows);
    const std::int64_t last_column = std::min(end, raster_.columns);
    for (std::int64_t r = row; r < last_row; r += step_) {
      const std::int64_t height = std::min(step_, last_row - r);
      for (std::int64_t c = begin; c < last_column;) {
        const std::int64_t next = std::min((c / raster_.cell + 1) * raster_.cell, last_column);
        cells_.add(r / raster_.cell, c / raster_.cell, height * (next - c));
        c = next;
      }
    }
  }

  void add_partial(std::int64_t row, std::int64_t column, const std::uint64_t* words) {
    const std::int64_t rows = std::min<std::int64_t>(BitMask::kCell, raster_.rows - row);
    const std::int64_t columns = std::min<std::int64_t>(BitMask::kCell, raster_.columns - column);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; c += step_) {
        const std::int64_t width = std::min(step_, columns - c);
        const std::uint64_t bits = words[r] >> c & ~std::uint64_t{0} >> (BitMask::kCell - width);
        cells_.add((row + r) / raster_.cell, (column + c) / raster_.cell, std::popcount(bits));
      }
    }
  }

 private:
  const MaskRaster& raster_;
  CellCounts& cells_;
  std::int64_t step_;
};

void count_bits(const BitMask& mask, const RasterRequest& request, const MaskRaster& raster, CellCounts& cells) {
  BitCounter counter(raster, cells);
  for (std::int64_t row = 0; row < raster.rows; row += BitMask::kCell) {
    const std::int64_t list = mask.list(request.batch, request.head, row / BitMask::kCell);
    for (std::int64_t position = mask.cells().begin(list); position < mask.cells().end(list); ++position) {
      const Run& run = mask.cells().run(position);
      if (run.begin * std::int64_t{BitMask::kCell} >= raster.columns) break;
      if (run.kind == TileKind::full) {
        counter.add_full(row, run.begin * std::int64_t{BitMask::kCell}, run.end * std::int64_t{BitMask::kCell});
        continue;
      }
      const std::uint64_t* words = mask.words(position);
      for (std::int64_t cell = run.begin; cell < run.end; ++cell, words += BitMask::kCell) {
        counter.add_partial(row, cell * BitMask::kCell, words);
      }
    }
  }
}

/// Gives cells no larger than a tile the kind of their tile.
void fill_tile_kinds(const TileSchedule& schedule, const RasterRequest& request, MaskRaster& raster) {
  std::fill(raster.kinds.begin(), raster.kinds.end(), TileKind::skip);
  for (std::int64_t row = 0; row < raster.cell_rows(); ++row) {
    for (const Run& run : schedule.row_runs(request.batch, request.head, row * raster.cell / raster.tile.rows)) {
      const std::int64_t per_tile = raster.tile.columns / raster.cell;
      const std::int64_t begin = std::min(run.begin * per_tile, raster.cell_columns());
      const std::int64_t end = std::min(run.end * per_tile, raster.cell_columns());
      const auto first = raster.kinds.begin() + static_cast<std::ptrdiff_t>(raster.index(row, 0));
      std::fill(first + begin, first + end, run.kind);
    }
  }
}

}  // namespace

MaskRaster rasterise(const LoweredMask& mask, const TileSchedule& schedule, const RasterRequest& request) {
  MaskRaster raster;
  raster.rows = request.rows;
  raster.columns = request.columns;
  raster.tile = schedule.tile();
  while (std::max(raster.cell_rows(), raster.cell_columns()) > request.most_cells) raster.cell *= 2;
  CellCounts cells(raster);
  if (mask.form() == MaskForm::bits) {
    count_bits(mask.bits(), request, raster, cells);
  } else {
    count_intervals(mask, request, raster, cells);
  }
  raster.visible.resize(static_cast<std::size_t>(raster.cell_rows() * raster.cell_columns()));
  raster.kinds.resize(raster.visible.size());
  cells.store(raster);
  const bool in_tiles = raster.tile.rows % raster.cell == 0 && raster.tile.columns % raster.cell == 0;
  if (in_tiles) fill_tile_kinds(schedule, request, raster);
  return raster;
}

}  // namespace flashmask::cli
