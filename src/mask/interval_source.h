#pragma once

#include <memory>
#include <string>
#include <vector>

#include "flashmask/mask.h"
#include "mask/mask_source.h"

namespace flashmask {

/// A mask that is already in interval form: lowering hands out the shared mask without a copy.
class IntervalSource final : public MaskSource {
 public:
  explicit IntervalSource(std::shared_ptr<const IntervalMask> mask) : mask_(std::move(mask)) {}

  void masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                   std::vector<Interval>& out) const override;
  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const override {
    return mask_->visible(batch, head, row, column);
  }
  std::shared_ptr<const IntervalMask> intervals() const override { return mask_; }

 private:
  std::shared_ptr<const IntervalMask> mask_;
};

Mask make_mask(IntervalMask intervals, std::string description);

}  // namespace flashmask
