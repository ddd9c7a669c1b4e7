// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "flashmask/reorder.h"
#include "schedule/reorder/graph.h"

namespace flashmask {

/// permute() that need not read a batch entry's bits where it is given what visible_columns() read off them, all heads
/// and all scores; [batch], null where it is not known.
Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
             const std::vector<std::shared_ptr<const Graph>>& visible, Executor& executor);

}  // namespace flashmask
