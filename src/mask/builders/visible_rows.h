#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/interval_mask.h"
#include "mask/interval_source.h"

/// What the builders share. Most masks are said by the rows that see a column, not by those that do not.
namespace flashmask::masks {

/// A mask of one batch entry and one or several heads, all visible; its sizes are checked.
IntervalMask all_visible(const std::string& builder, std::int64_t rows, std::int64_t columns, std::int64_t heads = 1);

inline Interval clipped(std::int64_t begin, std::int64_t end, std::int64_t rows) {
  const auto clip = [rows](std::int64_t row) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(row, 0, rows));
  };
  return {clip(begin), clip(end)};
}

/// Rows [begin, end) see the column at `index`, others do not; bounds may lie outside the mask.
inline void show_rows(IntervalMask& mask, std::size_t index, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = mask.shape().rows;
  end = std::max(begin, end);
  mask.set(index, clipped(0, begin, rows), clipped(end, rows, rows));
}

/// Rows [a_begin, a_end) and [b_begin, b_end) do not see the column at `index`.
inline void hide_rows(IntervalMask& mask, std::size_t index, std::int64_t a_begin, std::int64_t a_end,
                      std::int64_t b_begin, std::int64_t b_end) {
  const std::int64_t rows = mask.shape().rows;
  mask.set(index, clipped(a_begin, a_end, rows), clipped(b_begin, b_end, rows));
}

/// Nobody sees columns [begin, columns): padding.
void hide_columns_from(IntervalMask& mask, std::int64_t begin);

/// Throws unless every length is at least 0; gives their sum.
std::int64_t sum_of(const std::string& builder, const std::string& argument, Lengths lengths);

/// sum_of, which must not exceed `tokens`.
std::int64_t packed(const std::string& builder, Lengths documents, std::int64_t tokens);

/// Throws unless window >= 1.
void check_window(const std::string& builder, std::int64_t window);

}  // namespace flashmask::masks
