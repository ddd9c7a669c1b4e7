#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flashmask/interval_mask.h"

namespace flashmask {

/// What stands behind a Mask: anything that can say which rows of a column are masked. Lowering, expanding, the
/// algebra and `visible` ask nothing else, so a new kind of description is one class.
class MaskSource {
 public:
  virtual ~MaskSource() = default;

  /// Replaces `out` by the masked rows of one column: ascending, disjoint, not touching, within [0, rows).
  virtual void masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                           std::vector<Interval>& out) const = 0;

  /// One score; overridden where that is cheaper than asking for the whole column.
  virtual bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

  /// The interval form where it is at hand (all builders but the dense ones), else nullptr.
  virtual std::shared_ptr<const IntervalMask> intervals() const { return nullptr; }
};

}  // namespace flashmask
