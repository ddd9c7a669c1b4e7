#include "mask/builders/visible_rows.h"
#include "mask/check.h"

namespace flashmask::masks {
namespace {

/// How far a limit can matter; larger ones would only overflow.
std::int64_t reach(const IntervalMask& mask, std::int64_t limit) {
  return std::min(limit, mask.shape().rows + mask.shape().columns);
}

}  // namespace

Mask full(std::int64_t rows, std::int64_t columns) { return make_mask(all_visible("full", rows, columns), "full"); }

Mask causal(std::int64_t rows, std::int64_t columns) {
  IntervalMask mask = all_visible("causal", rows, columns);
  for (std::int64_t j = 0; j < columns; ++j) show_rows(mask, mask.index(0, 0, j), j + rows - columns, rows);
  return make_mask(std::move(mask), "causal");
}

Mask sliding_window(std::int64_t rows, std::int64_t columns, std::int64_t window) {
  check_window("sliding_window", window);
  IntervalMask mask = all_visible("sliding_window", rows, columns);
  const std::int64_t width = reach(mask, window);
  for (std::int64_t j = 0; j < columns; ++j) {
    const std::int64_t self = j + rows - columns;
    show_rows(mask, mask.index(0, 0, j), self, self + width);
  }
  return make_mask(std::move(mask), "sliding_window(" + grouped(window) + ")");
}

}  // namespace flashmask::masks
