// SPDX-License-Identifier: Apache-2.0
#include "base/checks.h"
#include "mask/builders/visible_rows.h"

namespace flashmask::masks {
namespace {

/// More rows than any mask has, which stands for no limit on that side.
constexpr std::int64_t unlimited = std::int64_t{1} << 33;

std::int64_t limit(const char* argument, std::optional<std::int64_t> neighbours) {
  if (neighbours && *neighbours < 0) {
    refuse("window: " + std::string(argument) + " is " + grouped(*neighbours) +
           "; give the number of columns on that side of self (>= 0), or nothing for no limit");
  }
  return std::min(neighbours.value_or(unlimited), unlimited);
}

std::string text(std::optional<std::int64_t> neighbours) { return neighbours ? grouped(*neighbours) : "unlimited"; }

}  // namespace

Mask full(std::int64_t rows, std::int64_t columns) { return {all_visible("full", rows, columns), "full"}; }

Mask causal(std::int64_t rows, std::int64_t columns) {
  IntervalMask mask = all_visible("causal", rows, columns);
  for (std::int64_t j = 0; j < columns; ++j) show_column(mask, j, {j + rows - columns, rows});
  return Mask(std::move(mask), "causal");
}

Mask sliding_window(std::int64_t rows, std::int64_t columns, std::int64_t window) {
  check_window("sliding_window", window);
  IntervalMask mask = all_visible("sliding_window", rows, columns);
  const std::int64_t width = std::min(window, unlimited);
  for (std::int64_t j = 0; j < columns; ++j) {
    const std::int64_t self = j + rows - columns;
    show_column(mask, j, {self, self + width});
  }
  return Mask(std::move(mask), "sliding_window(" + grouped(window) + ")");
}

Mask window(std::int64_t rows, std::int64_t columns, std::optional<std::int64_t> left,
            std::optional<std::int64_t> right) {
  const std::int64_t before = limit("left", left);
  const std::int64_t after = limit("right", right);
  IntervalMask mask = all_visible("window", rows, columns);
  for (std::int64_t j = 0; j < columns; ++j) {
    const std::int64_t self = j + rows - columns;
    show_column(mask, j, {self - after, self + before + 1});
  }
  return Mask(std::move(mask), "window(" + text(left) + ", " + text(right) + ")");
}

}  // namespace flashmask::masks
