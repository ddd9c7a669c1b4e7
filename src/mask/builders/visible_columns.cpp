// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/visible_columns.h"

namespace flashmask::masks {

MaskShape shape_of(const std::string& builder, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  check_size(builder, "rows", rows);
  check_size(builder, "columns", columns);
  return {.batch = 1, .heads = heads, .rows = rows, .columns = columns};
}

MaskShape shape_of(const std::string& builder, std::int64_t tokens) {
  check_size(builder, "tokens", tokens);
  return {.batch = 1, .heads = 1, .rows = tokens, .columns = tokens};
}

void check_at_least(const std::string& builder, const std::string& argument, std::int64_t value, std::int64_t least,
                    const std::string& meaning) {
  if (value < least) {
    refuse(builder + ": " + argument + " is " + grouped(value) + "; give " + meaning + " (>= " + std::to_string(least) +
           ")");
  }
}

void check_neighbours(const std::string& builder, const std::string& argument, std::int64_t value) {
  check_at_least(builder, argument, value, 0, "the number of columns on that side of self");
}

void check_positions(const std::string& builder, const std::string& argument, std::span<const std::int64_t> positions,
                     const std::string& axis, std::int64_t size) {
  for (std::size_t k = 0; k < positions.size(); ++k) {
    if (positions[k] >= 0 && positions[k] < size) continue;
    refuse(builder + ": " + argument + "[" + std::to_string(k) + "] is " + grouped(positions[k]) + "; give a " + axis +
           " from 0 to below " + grouped(size));
  }
}

}  // namespace flashmask::masks
