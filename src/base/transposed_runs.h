// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/executor.h"
#include "flashmask/tile.h"

namespace flashmask {

/// The run lists of one mask head: how many there are, and how many tiles each covers.
struct ListGrid {
  std::int64_t lists = 0;
  std::int64_t tiles = 0;
};

/// Transposes the run lists of `heads` mask heads, counted through all batch entries: column lists → row lists, or
/// back. Time is linear in the runs of both.
RunLists transposed_runs(const RunLists& lists, ListGrid grid, std::int64_t heads, Executor& executor);

}  // namespace flashmask
