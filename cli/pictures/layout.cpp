// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/layout.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kSwatch = 18;

/// Calls body(entry, x, line) for each entry at its place, relative to the legend's corner; returns the number of
/// lines.
template <class Body>
std::int64_t for_each_place(std::span<const LegendEntry> legend, std::int64_t width, const Body& body) {
  std::int64_t x = 0, line = 0;
  for (const LegendEntry& entry : legend) {
    const std::int64_t taken = kSwatch + kCharacterWidth * (1 + static_cast<std::int64_t>(entry.text.size()));
    if (x > 0 && x + taken > width) {
      x = 0;
      ++line;
    }
    body(entry, x, line);
    x += taken + kMargin;
  }
  return line + 1;
}

}  // namespace

std::string fitted(const std::string& text, std::int64_t width) {
  const auto characters = static_cast<std::size_t>(width / kCharacterWidth);
  return text.size() <= characters ? text : text.substr(0, characters - 3) + "...";
}

std::int64_t legend_lines(std::span<const LegendEntry> legend, std::int64_t width) {
  return for_each_place(legend, width, [](const LegendEntry&, std::int64_t, std::int64_t) {});
}

void draw_legend(Canvas& canvas, std::span<const LegendEntry> legend, Point at, std::int64_t width) {
  for_each_place(legend, width, [&](const LegendEntry& entry, std::int64_t x, std::int64_t line) {
    canvas.fill({at.x + x, at.y + line * kLine, kSwatch, kSwatch}, entry.colour);
    canvas.write(at.x + x + kSwatch + kCharacterWidth, at.y + line * kLine, entry.text, kInk);
  });
}

}  // namespace flashmask::cli
