// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mask/builders/visible_columns.h"

namespace flashmask::masks {
namespace {

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }

/// Sorts positions and joins neighbours into ranges; repeated positions count once.
std::vector<Span> ranges_of(std::span<const std::int64_t> positions) {
  std::vector<std::int64_t> sorted(positions.begin(), positions.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Span> ranges;
  for (const std::int64_t position : sorted) {
    if (ranges.empty() || position > ranges.back().end) ranges.push_back({position, position});
    ranges.back().end = position + 1;
  }
  return ranges;
}

}  // namespace

Mask dilated_window(std::int64_t rows, std::int64_t columns, std::int64_t left, std::int64_t right,
                    std::int64_t dilation) {
  const MaskShape shape = shape_of("dilated_window", 1, rows, columns);
  check_neighbours("dilated_window", "left", left);
  check_neighbours("dilated_window", "right", right);
  check_at_least("dilated_window", "dilation", dilation, 1, "the distance between two columns that a row sees");
  const std::int64_t step = std::min(dilation, rows + columns);  // no row reaches further
  const auto visible = [=](std::int64_t, std::int64_t, std::int64_t row, std::vector<Span>& out) {
    const std::int64_t self = row + columns - rows;
    const std::int64_t last = std::min(right, (columns - 1 - self) / step);
    out.clear();
    for (std::int64_t k = -std::min(left, floor_divide(self, step)); k <= last; ++k) {
      out.push_back({self + k * step, self + k * step + 1});
    }
  };
  return {from_visible_columns(shape, visible),
          "dilated_window(" + grouped(left) + ", " + grouped(right) + ", dilation " + grouped(dilation) + ")"};
}

Mask global_tokens(std::int64_t tokens, Elements<std::int64_t> positions, std::int64_t left, std::int64_t right) {
  const MaskShape shape = shape_of("global_tokens", tokens);
  check_positions("global_tokens", "positions", positions, "token", tokens);
  check_neighbours("global_tokens", "left", left);
  check_neighbours("global_tokens", "right", right);
  std::vector<std::uint8_t> is_global(static_cast<std::size_t>(tokens));
  for (const std::int64_t position : positions) is_global[static_cast<std::size_t>(position)] = 1;
  const std::vector<Span> globals = ranges_of(positions);
  const std::int64_t before = std::min(left, tokens);
  const std::int64_t after = std::min(right, tokens);
  const auto visible = [&](std::int64_t, std::int64_t, std::int64_t row, std::vector<Span>& out) {
    out.assign(1, {0, tokens});
    if (is_global[static_cast<std::size_t>(row)] != 0) return;
    out.assign(globals.begin(), globals.end());
    out.push_back({row - before, row + after + 1});
  };
  return {from_visible_columns(shape, visible),
          "global_tokens(" + counted(positions.size(), "token") + ", " + grouped(left) + ", " + grouped(right) + ")"};
}

}  // namespace flashmask::masks
