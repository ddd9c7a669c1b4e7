#pragma once

#include <memory>
#include <optional>

#include "flashmask/mask.h"
#include "mask/mask_source.h"

namespace flashmask {

/// The interval form of a description, or the first column that does not have one. Exactly one is present.
struct Fit {
  std::shared_ptr<const IntervalMask> intervals;
  std::optional<Misfit> misfit;
};

Fit fit(const MaskShape& shape, const MaskSource& source);

/// A mask that keeps the interval form when the description has one, else the description itself.
Mask make_mask(const MaskShape& shape, std::shared_ptr<const MaskSource> source, std::string description);

}  // namespace flashmask
