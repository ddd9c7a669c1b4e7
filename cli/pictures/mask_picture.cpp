// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/mask_picture.h"

#include <algorithm>

#include "cli/base/quantities.h"
#include "cli/pictures/cell_colour.h"
#include "cli/pictures/layout.h"
#include "cli/pictures/png_canvas.h"
#include "cli/pictures/svg_canvas.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kPanelSide = 1024;  ///< pixels, the target size
constexpr std::int64_t kMostCells = 1280;  ///< along a side
constexpr std::int64_t kLargestCell = 28;  ///< pixels
constexpr std::int64_t kZoomedScores = 512;

std::vector<LegendEntry> legend() {
  return {{kFullColour, "full tile"},
          {kPartialVisibleColour, "partial tile: visible"},
          {kPartialMaskedColour, "partial tile: masked"},
          {kSkipColour, "skipped tile"}};
}

std::string title_of(const Mask& mask) {
  return mask.description() + ", " + with_commas(mask.shape().rows) + " rows, " + with_commas(mask.shape().columns) +
         " columns";
}

std::string tiles_of(const TileSchedule& schedule) {
  const TileCounts counts = schedule.counts();
  return "tiles of " + std::to_string(schedule.tile().rows) + " x " + std::to_string(schedule.tile().columns) + ": " +
         with_commas(counts.full) + " full, " + with_commas(counts.partial) + " partial, " + with_commas(counts.skip) +
         " skipped";
}

std::string caption_of(const RasterRequest& request, const MaskShape& shape, std::int64_t cell) {
  const bool whole = request.rows == shape.rows && request.columns == shape.columns;
  const std::string part =
      whole ? "the whole mask"
            : "first " + with_commas(request.rows) + " x " + with_commas(request.columns) + " scores";
  const std::string side = std::to_string(cell);
  return cell == 1 ? part : part + ", a dot is " + side + " x " + side + " scores";
}

/// Distances between white lines, and their thickness, in pixels.
struct Grid {
  std::int64_t row_step, column_step, thickness;
};

/// Lines closer than this would hide what they divide.
constexpr std::int64_t kNarrowest = 6;

void draw_grid(Canvas& canvas, const Rectangle& panel, const Grid& grid) {
  if (grid.row_step < kNarrowest || grid.column_step < kNarrowest) return;
  const std::int64_t before = grid.thickness / 2;
  for (std::int64_t y = grid.row_step - before; y < panel.height; y += grid.row_step) {
    canvas.fill({panel.x, panel.y + y, panel.width, grid.thickness}, kPaper);
  }
  for (std::int64_t x = grid.column_step - before; x < panel.width; x += grid.column_step) {
    canvas.fill({panel.x + x, panel.y, grid.thickness, panel.height}, kPaper);
  }
}

void draw_outline(Canvas& canvas, const Rectangle& box) {
  canvas.fill({box.x, box.y, box.width, 1}, kFaintInk);
  canvas.fill({box.x, box.y, 1, box.height}, kFaintInk);
  canvas.fill({box.x, box.y + box.height, box.width + 1, 1}, kFaintInk);
  canvas.fill({box.x + box.width, box.y, 1, box.height}, kFaintInk);
}

}  // namespace

MaskPicture::MaskPicture(const Mask& mask, TileShape tile, std::int64_t batch, std::int64_t head) {
  const LoweredMask& lowered = mask.lowered();
  const TileSchedule tiles = schedule(lowered, tile);
  const MaskShape& shape = mask.shape();
  if (shape.rows == 0 || shape.columns == 0) {
    throw Error(Status::invalid_argument, "a mask without rows or columns has no picture; give --tokens of at least 1");
  }
  title_ = title_of(mask);
  tiles_ = tiles_of(tiles);
  add_panel(lowered, tiles, {batch, head, shape.rows, shape.columns, kMostCells});
  if (panels_.front().raster.cell > 1) {
    const std::int64_t rows = std::min(kZoomedScores, shape.rows), columns = std::min(kZoomedScores, shape.columns);
    add_panel(lowered, tiles, {batch, head, rows, columns, kMostCells});
  }
}

void MaskPicture::add_panel(const LoweredMask& mask, const TileSchedule& schedule, const RasterRequest& request) {
  Panel panel;
  panel.raster = rasterise(mask, schedule, request);
  const std::int64_t cells = std::max(panel.raster.cell_rows(), panel.raster.cell_columns());
  panel.pixels = std::clamp<std::int64_t>(kPanelSide / cells, 1, kLargestCell);
  panel.caption = caption_of(request, mask.shape(), panel.raster.cell);
  panels_.push_back(std::move(panel));
}

void MaskPicture::draw_panel(Canvas& canvas, const Panel& panel, std::int64_t left, std::int64_t top) {
  const MaskRaster& raster = panel.raster;
  const auto colour_at = [&](std::int64_t row, std::int64_t column) {
    const std::size_t index = raster.index(row, column);
    return cell_colour(raster.kinds[index], raster.visible[index]);
  };
  const CellGrid cells{{left, top}, raster.cell_rows(), raster.cell_columns(), panel.pixels};
  draw_cells(canvas, cells, kSkipColour, colour_at);
  draw_lines(canvas, panel, {left, top, panel.width(), panel.height()});
}

/// Draws lines between scores, where cells are large enough, and between tiles.
void MaskPicture::draw_lines(Canvas& canvas, const Panel& panel, const Rectangle& where) {
  const MaskRaster& raster = panel.raster;
  draw_grid(canvas, where, {panel.pixels, panel.pixels, 1});
  if (raster.tile.rows % raster.cell != 0 || raster.tile.columns % raster.cell != 0) return;
  draw_grid(canvas, where,
            {raster.tile.rows / raster.cell * panel.pixels, raster.tile.columns / raster.cell * panel.pixels,
             panel.pixels >= kNarrowest ? 3 : 1});
}

/// Outlines on the first panel the part that the second enlarges.
void MaskPicture::draw_zoomed_part(Canvas& canvas, std::int64_t left, std::int64_t top) const {
  if (panels_.size() < 2) return;
  const Panel& whole = panels_[0];
  const MaskRaster& part = panels_[1].raster;
  draw_outline(canvas, {left, top, part.columns * whole.pixels / whole.raster.cell,
                        part.rows * whole.pixels / whole.raster.cell});
}

std::int64_t MaskPicture::panels_height() const {
  std::int64_t tallest = 0;
  for (const Panel& panel : panels_) tallest = std::max(tallest, panel.height());
  return tallest;
}

std::int64_t MaskPicture::width() const {
  constexpr std::int64_t kLegendWidth = 640;  // room for the legend in two lines
  std::int64_t total = kMargin + kLine;
  for (const Panel& panel : panels_) total += panel.width() + kMargin;
  return std::max(total, kLegendWidth);
}

std::int64_t MaskPicture::height() const {
  return kMargin + 3 * kLine + panels_height() + kMargin + 2 * kLine + kMargin / 2;
}

void MaskPicture::draw(Canvas& canvas) const {
  canvas.fill({0, 0, width(), height()}, kPaper);
  const std::int64_t text_room = width() - 2 * kMargin;
  canvas.write(kMargin, kMargin, fitted(title_, text_room), kInk);
  canvas.write(kMargin, kMargin + kLine, fitted(tiles_, text_room), kFaintInk);
  std::int64_t left = kMargin + kLine;
  const std::int64_t top = kMargin + 3 * kLine;
  canvas.write(kMargin, top, fitted("query rows", panels_height()), kFaintInk, TextDirection::down);
  for (const Panel& panel : panels_) {
    canvas.write(left, top - kLine + 4, fitted("key columns: " + panel.caption, panel.width()), kFaintInk);
    draw_panel(canvas, panel, left, top);
    left += panel.width() + kMargin;
  }
  draw_zoomed_part(canvas, kMargin + kLine, top);
  draw_legend(canvas, legend(), {kMargin, top + panels_height() + kMargin}, text_room);
}

std::string MaskPicture::png() const {
  PngCanvas canvas(width(), height());
  draw(canvas);
  return canvas.encode();
}

std::string MaskPicture::svg() const {
  SvgCanvas canvas(width(), height());
  draw(canvas);
  return canvas.encode();
}

}  // namespace flashmask::cli
