#pragma once

#include <span>
#include <string>

#include "cli/pictures/canvas.h"

namespace flashmask::cli {

inline constexpr Rgb kPaper{255, 255, 255};
inline constexpr Rgb kInk{31, 41, 55};
inline constexpr Rgb kFaintInk{107, 114, 128};

inline constexpr std::int64_t kMargin = 32;
inline constexpr std::int64_t kLine = 30;  ///< from one line of text to the next

/// As much of a text as fits a width, three dots at its end when it is cut.
std::string fitted(const std::string& text, std::int64_t width);

/// What a colour of a picture means.
struct LegendEntry {
  Rgb colour;
  std::string text;
};

/// Lines of text that a legend takes in a width.
std::int64_t legend_lines(std::span<const LegendEntry> legend, std::int64_t width);

/// From (x, y) on, in lines no wider than `width`.
void draw_legend(Canvas& canvas, std::span<const LegendEntry> legend, Point at, std::int64_t width);

}  // namespace flashmask::cli
