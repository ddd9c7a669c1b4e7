#include "flashmask/mask.h"

#include <algorithm>
#include <utility>

#include "mask/check.h"
#include "mask/mask_source.h"

namespace flashmask {
namespace {

void check_index(const char* axis, std::int64_t value, std::int64_t size) {
  if (value < 0 || value >= size) {
    refuse("Mask::visible: " + std::string(axis) + " is " + grouped(value) + " but the mask has " + grouped(size) +
           "; give an index from 0 to below that");
  }
}

}  // namespace

bool MaskSource::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  std::vector<Interval> masked;
  masked_rows(batch, head, column, masked);
  return std::none_of(masked.begin(), masked.end(), [row](Interval r) { return r.begin <= row && row < r.end; });
}

Mask::Mask(const MaskShape& shape, std::shared_ptr<const MaskSource> source, std::string description)
    : shape_(shape), source_(std::move(source)), description_(std::move(description)) {}

bool Mask::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  check_index("batch", batch, shape_.batch);
  check_index("head", head, shape_.heads);
  check_index("row", row, shape_.rows);
  check_index("column", column, shape_.columns);
  return source_->visible(batch, head, row, column);
}

std::string to_string(MaskForm form) { return form == MaskForm::intervals ? "intervals" : "bits"; }

}  // namespace flashmask
