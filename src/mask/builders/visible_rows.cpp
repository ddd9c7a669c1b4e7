#include "mask/builders/visible_rows.h"

#include <limits>

#include "mask/check.h"

namespace flashmask::masks {

IntervalMask all_visible(const std::string& builder, std::int64_t rows, std::int64_t columns, std::int64_t heads) {
  check_size(builder, rows == columns ? "tokens" : "rows", rows);
  check_size(builder, "columns", columns);
  return IntervalMask({.batch = 1, .heads = heads, .rows = rows, .columns = columns});
}

void hide_columns_from(IntervalMask& mask, std::int64_t begin) {
  for (std::int64_t column = begin; column < mask.shape().columns; ++column) {
    show_rows(mask, mask.index(0, 0, column), 0, 0);
  }
}

std::int64_t sum_of(const std::string& builder, const std::string& argument, Lengths lengths) {
  std::int64_t sum = 0;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    check_size(builder, argument + "[" + std::to_string(k) + "]", lengths[k]);
    sum += lengths[k];
  }
  return sum;
}

std::int64_t packed(const std::string& builder, Lengths documents, std::int64_t tokens) {
  const std::int64_t sum = sum_of(builder, "documents", documents);
  if (sum > tokens) {
    refuse(builder + ": documents add up to " + grouped(sum) + " tokens but tokens is " + grouped(tokens) +
           "; give tokens >= " + std::to_string(sum) + " or shorten the documents");
  }
  return sum;
}

void check_window(const std::string& builder, std::int64_t window) {
  if (window < 1) {
    refuse(builder + ": window is " + grouped(window) + "; give the number of keys a row sees, itself included (>= 1)");
  }
}

}  // namespace flashmask::masks
