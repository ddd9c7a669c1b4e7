// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/terminal_picture.h"

#include "cli/pictures/cell_colour.h"

namespace flashmask::cli {
namespace {

constexpr const char* kPlain = "\x1b[0m";

/// The nearest colour of the 6 × 6 × 6 cube of a 256-colour terminal.
int cube_colour(Rgb colour) {
  // The cube's levels are 0, 95, 135, 175, 215, 255.
  const auto level = [](int value) { return value < 48 ? 0 : value < 115 ? 1 : (value - 35) / 40; };
  return 16 + 36 * level(colour.red) + 6 * level(colour.green) + level(colour.blue);
}

std::string foreground(Rgb colour) { return "\x1b[38;5;" + std::to_string(cube_colour(colour)) + "m"; }
std::string background(Rgb colour) { return "\x1b[48;5;" + std::to_string(cube_colour(colour)) + "m"; }

Rgb colour_at(const MaskRaster& raster, std::int64_t row, std::int64_t column) {
  const std::size_t index = raster.index(row, column);
  return cell_colour(raster.kinds[index], raster.visible[index]);
}

char symbol(float visible) { return visible == 1 ? '#' : visible == 0 ? '.' : '+'; }

}  // namespace

std::string plain_picture(const MaskRaster& raster) {
  std::string picture;
  for (std::int64_t row = 0; row < raster.cell_rows(); ++row) {
    for (std::int64_t column = 0; column < raster.cell_columns(); ++column) {
      picture += symbol(raster.visible[raster.index(row, column)]);
    }
    picture += '\n';
  }
  return picture;
}

std::string coloured_picture(const MaskRaster& raster) {
  return coloured_picture(raster,
                          [&](std::int64_t row, std::int64_t column) { return colour_at(raster, row, column); });
}

std::string coloured_picture(const MaskRaster& raster, const std::function<Rgb(std::int64_t, std::int64_t)>& colour) {
  std::string picture;
  for (std::int64_t row = 0; row < raster.cell_rows(); row += 2) {
    for (std::int64_t column = 0; column < raster.cell_columns(); ++column) {
      picture += foreground(colour(row, column));
      if (row + 1 < raster.cell_rows()) picture += background(colour(row + 1, column));
      picture += "▀";
    }
    picture += std::string(kPlain) + "\n";
  }
  return picture;
}

std::string coloured_legend() {
  const auto entry = [](Rgb colour, const char* text) { return background(colour) + "  " + kPlain + " " + text; };
  return entry(kFullColour, "full tile") + "  " + entry(kPartialVisibleColour, "partial tile: visible") + "  " +
         entry(kPartialMaskedColour, "partial: masked") + "  " + entry(kSkipColour, "skipped") + "\n";
}

}  // namespace flashmask::cli
