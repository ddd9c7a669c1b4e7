// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "flashmask/mask.h"

namespace flashmask {

/// The interval form of a mask, or the first column that does not have one. Exactly one is present.
struct Recognised {
  std::shared_ptr<const IntervalMask> intervals;
  std::optional<Misfit> misfit;
};

/// Looks at each cell once, and at no more columns of cells than it takes to find a misfit.
Recognised recognise(const BitMask& mask);

}  // namespace flashmask
