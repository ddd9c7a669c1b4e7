// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "flashmask/mask.h"

namespace flashmask {

/// The interval form of a mask, or the first column that does not fit it. Exactly one is present.
struct Recognised {
  std::shared_ptr<const IntervalMask> intervals;
  std::optional<Misfit> misfit;
};

/// Finds the interval form of a mask. Reads each cell at most once, and stops at the first misfit.
Recognised recognise(const BitMask& mask);

}  // namespace flashmask
