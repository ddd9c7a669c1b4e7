// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/visible_rows.h"

#include "base/checks.h"

namespace flashmask::masks {

IntervalMask all_visible(const std::string& builder, std::int64_t rows, std::int64_t columns) {
  check_size(builder, "rows", rows);
  check_size(builder, "columns", columns);
  return IntervalMask({.batch = 1, .heads = 1, .rows = rows, .columns = columns});
}

IntervalMask all_visible(const std::string& builder, std::int64_t tokens) {
  check_size(builder, "tokens", tokens);
  return IntervalMask({.batch = 1, .heads = 1, .rows = tokens, .columns = tokens});
}

void hide_columns_from(IntervalMask& mask, std::int64_t begin) {
  for (std::int64_t j = begin; j < mask.shape().columns; ++j) show_column(mask, j, {0, 0});
}

void check_window(const std::string& builder, std::int64_t window) {
  if (window < 1) {
    refuse(builder + ": window is " + grouped(window) +
           "; give the number of columns that a row sees, itself included (>= 1)");
  }
}

}  // namespace flashmask::masks
