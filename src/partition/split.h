// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "partition/measures.h"
#include "partition/simple.h"

namespace flashmask {

/// What a bisection makes small.
struct SplitAim {
  std::int64_t tolerance = 0;  ///< of shares, in millionths, within which the fewest crossing columns are taken
  /// If not 0: what a millionth of a rank's work, and what a column tile that crosses a cut, costs instead.
  std::int64_t work_price = 0;
  std::int64_t column_price = 0;
};

/// Shares tiles out by cutting in two, and in two again: each half of the ranks gets its share of the tiles, of the
/// work of rows and of the work of columns. By the necklace theorem two windows of the sequence suffice for that; one
/// is taken where it is within the tolerance. Column work matters since the first columns of a long document belong to
/// rows that are cheap, and everybody needs them. Units of the first of `sizes` are separated first.
TileOwners split_owners(const TileMeasures& measures, std::span<const std::int32_t> sizes, const SplitAim& aim);

}  // namespace flashmask
