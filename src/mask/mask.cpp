// SPDX-License-Identifier: Apache-2.0
#include "flashmask/mask.h"

#include "base/checks.h"

namespace flashmask {
namespace {

void check_index(const char* axis, std::int64_t value, std::int64_t size) {
  if (value < 0 || value >= size) {
    refuse("Mask::visible: " + std::string(axis) + " is " + grouped(value) + " but the mask has " + grouped(size) +
           "; give an index from 0 to below that");
  }
}

}  // namespace

bool Mask::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  check_index("batch", batch, shape().batch);
  check_index("head", head, shape().heads);
  check_index("row", row, shape().rows);
  check_index("column", column, shape().columns);
  return lowered_.visible(batch, head, row, column);
}

std::string to_string(MaskForm form) { return form == MaskForm::intervals ? "intervals" : "bits"; }

}  // namespace flashmask
