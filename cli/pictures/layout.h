// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cli/pictures/canvas.h"

namespace flashmask::cli {

inline constexpr Rgb kPaper{255, 255, 255};
inline constexpr Rgb kInk{31, 41, 55};
inline constexpr Rgb kFaintInk{107, 114, 128};

inline constexpr std::int64_t kMargin = 32;
inline constexpr std::int64_t kLine = 30;  ///< distance from one line of text to the next

/// As much of a text as fits a width; three dots end a text that is cut.
std::string fitted(const std::string& text, std::int64_t width);

/// A grid of square cells; neighbours of one colour are filled as one rectangle.
struct CellGrid {
  Point at;                    ///< its top left corner
  std::int64_t rows, columns;  ///< cells
  std::int64_t pixels;         ///< a cell's side
};

/// Draws each cell in colour_at(row, column), over `ground`.
template <class ColourAt>
void draw_cells(Canvas& canvas, const CellGrid& grid, Rgb ground, const ColourAt& colour_at) {
  canvas.fill({grid.at.x, grid.at.y, grid.columns * grid.pixels, grid.rows * grid.pixels}, ground);
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    for (std::int64_t begin = 0, end = 0; begin < grid.columns; begin = end) {
      const Rgb colour = colour_at(row, begin);
      for (end = begin + 1; end < grid.columns && colour_at(row, end) == colour;) ++end;
      if (colour == ground) continue;
      canvas.fill(
          {grid.at.x + begin * grid.pixels, grid.at.y + row * grid.pixels, (end - begin) * grid.pixels, grid.pixels},
          colour);
    }
  }
}

/// An entry of a legend: what a colour means.
struct LegendEntry {
  Rgb colour;
  std::string text;
};

/// The number of text lines that a legend of this width takes.
std::int64_t legend_lines(std::span<const LegendEntry> legend, std::int64_t width);

/// Draws the legend from `at`, in lines no wider than `width`.
void draw_legend(Canvas& canvas, std::span<const LegendEntry> legend, Point at, std::int64_t width);

}  // namespace flashmask::cli
