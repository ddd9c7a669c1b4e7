// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/reorder/graph.h"

namespace flashmask {

/// See flashmask/reorder.h.
std::vector<std::uint32_t> reverse_cuthill_mckee(const Graph& graph);

}  // namespace flashmask
