// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/interval_mask.h"

/// Helpers of builders that describe a column by the rows that see it, or by the rows that do not. Bounds may lie
/// outside the mask and are clipped.
namespace flashmask::masks {

/// Returns a mask that shows every score; throws unless the sizes are legal.
IntervalMask all_visible(const std::string& builder, std::int64_t rows, std::int64_t columns);
IntervalMask all_visible(const std::string& builder, std::int64_t tokens);

inline Interval clipped(Span span, std::int64_t rows) {
  return {static_cast<std::int32_t>(std::clamp<std::int64_t>(span.begin, 0, rows)),
          static_cast<std::int32_t>(std::clamp<std::int64_t>(span.end, 0, rows))};
}

/// Hides one column from two ranges of rows.
inline void hide_column(IntervalMask& mask, std::int64_t column, Span a, Span b) {
  const std::int64_t rows = mask.shape().rows;
  mask.set(static_cast<std::size_t>(column), clipped(a, rows), clipped(b, rows));
}

/// Hides one column from every row but `visible`.
inline void show_column(IntervalMask& mask, std::int64_t column, Span visible) {
  const std::int64_t rows = mask.shape().rows;
  hide_column(mask, column, {0, visible.begin}, {visible.end, rows});
}

/// Hides columns [begin, columns) from every row: padding.
void hide_columns_from(IntervalMask& mask, std::int64_t begin);

/// Throws unless window >= 1.
void check_window(const std::string& builder, std::int64_t window);

}  // namespace flashmask::masks
