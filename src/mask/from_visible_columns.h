// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "flashmask/bit_mask.h"
#include "flashmask/builders.h"
#include "flashmask/executor.h"

namespace flashmask {

/// Replaces `out` by the ranges of columns that a row sees, in any order, overlapping or out of bounds. Called once a
/// row, by several threads at the same time.
using VisibleColumns =
    std::function<void(std::int64_t batch, std::int64_t head, std::int64_t row, std::vector<masks::Span>& out)>;

/// Any mask, row by row: what builders of masks that fit no intervals use. Costs the ranges, not the scores.
BitMask from_visible_columns(const MaskShape& shape, const VisibleColumns& visible_columns,
                             Executor& executor = default_executor());

}  // namespace flashmask
