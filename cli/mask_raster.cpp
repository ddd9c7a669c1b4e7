#include "mask_raster.h"

#include <algorithm>

namespace flashmask::cli {
namespace {

/// Masked scores of one column of cells, gathered an interval at a time in constant time.
class MaskedCounts {
 public:
  explicit MaskedCounts(const MaskRaster& raster)
      : rows_(raster.rows), cell_(raster.cell), counts_(raster.cell_rows()), whole_(raster.cell_rows() + 1) {}

  void add(Interval masked) {
    const std::int64_t begin = masked.begin, end = std::min<std::int64_t>(masked.end, rows_);
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

  /// Calls body(cell row, masked scores) from the top.
  template <class Body>
  void for_each(const Body& body) const {
    std::int64_t whole = 0;
    for (std::size_t row = 0; row < counts_.size(); ++row) {
      whole += whole_[row];
      body(static_cast<std::int64_t>(row), counts_[row] + whole);
    }
  }

 private:
  static std::int64_t& at(std::vector<std::int64_t>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }

  std::int64_t rows_, cell_;
  std::vector<std::int64_t> counts_;  ///< from cells that an interval ends in
  std::vector<std::int64_t> whole_;   ///< differences, from cells that it covers
};

TileKind kind_of(float visible) {
  return visible == 0 ? TileKind::skip : visible == 1 ? TileKind::full : TileKind::partial;
}

void fill_cell_column(const IntervalMask& mask, const RasterRequest& request, std::int64_t column, MaskRaster& raster) {
  MaskedCounts masked(raster);
  const std::int64_t begin = column * raster.cell, end = std::min(begin + raster.cell, raster.columns);
  for (std::int64_t j = begin; j < end; ++j) {
    const std::size_t index = mask.index(request.batch, request.head, j);
    masked.add(mask.first(index));
    masked.add(mask.second(index));
  }
  masked.for_each([&](std::int64_t row, std::int64_t count) {
    const std::int64_t height = std::min(raster.cell, raster.rows - row * raster.cell);
    const std::int64_t scores = height * (end - begin);
    const float visible = static_cast<float>(scores - count) / static_cast<float>(scores);
    raster.visible[raster.index(row, column)] = visible;
    raster.kinds[raster.index(row, column)] = kind_of(visible);
  });
}

/// Cells smaller than a tile take the kind of the tile.
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

MaskRaster rasterise(const IntervalMask& mask, const TileSchedule& schedule, const RasterRequest& request) {
  MaskRaster raster;
  raster.rows = request.rows;
  raster.columns = request.columns;
  raster.tile = schedule.tile();
  while (std::max(raster.cell_rows(), raster.cell_columns()) > request.most_cells) raster.cell *= 2;
  const auto cells = static_cast<std::size_t>(raster.cell_rows() * raster.cell_columns());
  raster.visible.resize(cells);
  raster.kinds.resize(cells);
  for (std::int64_t column = 0; column < raster.cell_columns(); ++column) {
    fill_cell_column(mask, request, column, raster);
  }
  const bool in_tiles = raster.tile.rows % raster.cell == 0 && raster.tile.columns % raster.cell == 0;
  if (in_tiles) fill_tile_kinds(schedule, request, raster);
  return raster;
}

}  // namespace flashmask::cli
