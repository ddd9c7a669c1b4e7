// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/pictures/canvas.h"
#include "cli/pictures/mask_raster.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"

namespace flashmask::cli {

/// A picture of one head of a mask: scores dark on light, in the colour of their tile's kind, with a legend. A mask too
/// large for one pixel per score gets a second panel that enlarges its first scores.
class MaskPicture {
 public:
  MaskPicture(const Mask& mask, TileShape tile, std::int64_t batch, std::int64_t head);

  std::string png() const;
  std::string svg() const;

 private:
  struct Panel {
    MaskRaster raster;
    std::int64_t pixels = 1;  ///< a cell's side
    std::string caption;

    std::int64_t width() const { return raster.cell_columns() * pixels; }
    std::int64_t height() const { return raster.cell_rows() * pixels; }
  };

  void add_panel(const LoweredMask& mask, const TileSchedule& schedule, const RasterRequest& request);
  void draw(Canvas& canvas) const;
  static void draw_panel(Canvas& canvas, const Panel& panel, std::int64_t left, std::int64_t top);
  static void draw_lines(Canvas& canvas, const Panel& panel, const Rectangle& where);
  void draw_zoomed_part(Canvas& canvas, std::int64_t left, std::int64_t top) const;
  std::int64_t width() const;
  std::int64_t height() const;
  std::int64_t panels_height() const;

  std::string title_, tiles_;
  std::vector<Panel> panels_;
};

}  // namespace flashmask::cli
