// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "cli/pictures/canvas.h"
#include "cli/pictures/mask_raster.h"

namespace flashmask::cli {

/// One character per cell, row 0 on top: '#' all visible, '+' some, '.' none.
std::string plain_picture(const MaskRaster& raster);

/// Half a character per cell, in the colours of the PNG (256-colour ANSI): scores dark on the tint of their tile's
/// kind.
std::string coloured_picture(const MaskRaster& raster);

/// A picture of that kind with each cell in colour_at(row, column).
std::string coloured_picture(const MaskRaster& raster,
                             const std::function<Rgb(std::int64_t row, std::int64_t column)>& colour_at);

/// A legend of the colours, in colour.
std::string coloured_legend();

}  // namespace flashmask::cli
