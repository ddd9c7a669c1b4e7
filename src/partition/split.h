// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "partition/measures.h"
#include "partition/simple.h"

namespace flashmask {

/// The objective of a bisection.
struct SplitAim {
  std::int64_t tolerance = 0;  ///< allowed error of a share, in millionths; within it the fewest crossings win
  /// If not 0, costs are minimised instead: of a millionth of a rank's work, and of a column tile that crosses a cut.
  std::int64_t work_price = 0;
  std::int64_t column_price = 0;
};

/// Shares tiles out by repeated bisection: each half of the ranks gets its share of the tiles, of row work and of
/// column work. By the necklace theorem two windows of the sequence suffice for that; one is used where it is within
/// the tolerance. Column work matters because the first columns of a long document belong to cheap rows, yet every rank
/// needs them. The groups of the first of `sizes` are separated first.
TileOwners split_owners(const TileMeasures& measures, std::span<const std::int32_t> sizes, const SplitAim& aim);

}  // namespace flashmask
