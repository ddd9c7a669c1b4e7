// SPDX-License-Identifier: Apache-2.0
#include "flashmask/interval_mask.h"

#include <algorithm>
#include <utility>

#include "base/checks.h"

namespace flashmask {
namespace {

/// Returns the number of columns of all batch entries and heads together.
std::size_t entries(const MaskShape& shape) {
  check_shape("IntervalMask", shape);
  return element_count("IntervalMask", {shape.batch, shape.heads, shape.columns});
}

Interval clip(Interval range, std::int32_t rows) {
  const Interval clipped{std::max(range.begin, 0), std::min(range.end, rows)};
  return clipped.empty() ? Interval{} : clipped;
}

bool contains(Interval range, std::int64_t row) { return range.begin <= row && row < range.end; }

}  // namespace

IntervalMask::IntervalMask(const MaskShape& shape)
    : shape_(shape),
      first_begin_(zeros<std::int32_t>("IntervalMask", entries(shape))),
      first_end_(zeros<std::int32_t>("IntervalMask", first_begin_.size())),
      second_begin_(zeros<std::int32_t>("IntervalMask", first_begin_.size())),
      second_end_(zeros<std::int32_t>("IntervalMask", first_begin_.size())) {}

void IntervalMask::set(std::size_t index, Interval a, Interval b) {
  if (index >= first_begin_.size()) {
    refuse("IntervalMask::set: index is " + grouped(static_cast<std::int64_t>(index)) + " but the mask has " +
           counted(first_begin_.size(), "column") + " over all batch entries and heads; take index()");
  }
  const auto rows = static_cast<std::int32_t>(shape_.rows);
  a = clip(a, rows);
  b = clip(b, rows);
  if (a.empty() || (!b.empty() && b.begin < a.begin)) std::swap(a, b);
  if (!b.empty() && b.begin <= a.end) {
    a.end = std::max(a.end, b.end);
    b = {};
  }
  first_begin_[index] = a.begin;
  first_end_[index] = a.end;
  second_begin_[index] = b.begin;
  second_end_[index] = b.end;
}

bool IntervalMask::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  const std::size_t i = index(batch, head, column);
  return !contains(first(i), row) && !contains(second(i), row);
}

std::size_t IntervalMask::memory_bytes() const { return 4 * sizeof(std::int32_t) * first_begin_.size(); }

}  // namespace flashmask
