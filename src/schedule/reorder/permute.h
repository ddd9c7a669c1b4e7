// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "flashmask/reorder.h"
#include "schedule/reorder/graph.h"

namespace flashmask {

/// permute() with graphs that visible_columns() made, [batch], which it reads instead of the bits. A graph must hold
/// exactly the visible scores of every head of its batch entry; null where there is none.
Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
             const std::vector<std::shared_ptr<const Graph>>& visible, Executor& executor);

}  // namespace flashmask
