// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "flashmask/bit_mask.h"
#include "flashmask/builders.h"
#include "flashmask/executor.h"

namespace flashmask {

/// Replaces `out` by the ranges of columns that a row sees; they may be unordered, overlap or be out of bounds. Called
/// once per row, by several threads at the same time.
using VisibleColumns =
    std::function<void(std::int64_t batch, std::int64_t head, std::int64_t row, std::vector<masks::Span>& out)>;

/// Builds any mask row by row, also one that fits no intervals. Takes time for the cells in ranges, not for all cells.
BitMask from_visible_columns(const MaskShape& shape, const VisibleColumns& visible_columns,
                             Executor& executor = default_executor());

}  // namespace flashmask
