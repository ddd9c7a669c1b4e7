// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "flashmask/span.h"

namespace flashmask {

/// Rows and columns between two free cuts of a mask: the rows see no other columns, and no other rows see the columns.
struct Island {
  Span rows, columns;
  /// No row sees more than one column, and no column is seen by more than one row, so that where tokens lie in a tile
  /// decides no sum: padding that sees itself, rows that see nothing, columns that no row sees.
  bool single;

  friend bool operator==(const Island&, const Island&) = default;
};

/// Returns the islands of one batch entry, which together hold every row and every column, in order. They are cut at
/// all cuts that are free in every head, but neighbours without sums are one island.
std::vector<Island> islands(const LoweredMask& mask, std::int64_t batch, Executor& executor);

}  // namespace flashmask
