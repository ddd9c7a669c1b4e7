#include "mask/interval_source.h"

#include <utility>

namespace flashmask {

void IntervalSource::masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                                 std::vector<Interval>& out) const {
  out.clear();
  const std::size_t index = mask_->index(batch, head, column);
  if (!mask_->first(index).empty()) out.push_back(mask_->first(index));
  if (!mask_->second(index).empty()) out.push_back(mask_->second(index));
}

Mask make_mask(IntervalMask intervals, std::string description) {
  const MaskShape shape = intervals.shape();
  auto shared = std::make_shared<const IntervalMask>(std::move(intervals));
  return {shape, std::make_shared<IntervalSource>(std::move(shared)), std::move(description)};
}

}  // namespace flashmask
