// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/pictures/layout.h"
#include "cli/pictures/mask_raster.h"
#include "flashmask/partition.h"

namespace flashmask::cli {

/// A picture of one head of a mask whose rows are shared out over ranks: visible scores in the colour of the rank that
/// computes them; bars on the left and on top for the ranks that hold rows and columns; a legend.
class PartitionPicture {
 public:
  PartitionPicture(const Mask& mask, const Partition& partition, std::int64_t most_cells);

  std::string png() const;
  std::string svg() const;
  /// One character per cell: the rank's if some score is visible, else '.'. Ranks past the letters start over.
  std::string plain() const;
  /// Half a character per cell, in 256-colour ANSI.
  std::string coloured() const;

 private:
  Rgb colour(std::int64_t row, std::int64_t column) const;
  void draw(Canvas& canvas) const;
  void draw_holders(Canvas& canvas) const;
  std::int64_t side() const { return raster_.cell_rows() * pixels_; }
  std::int64_t width() const;
  std::int64_t height() const;

  std::string title_, summary_, why_;
  std::vector<LegendEntry> legend_;
  MaskRaster raster_;
  std::vector<std::int32_t> ranks_;  ///< [cell rows]: the rank that holds the middle of each
  std::int64_t pixels_;              ///< a cell's side
};

}  // namespace flashmask::cli
