// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/executor.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Run lists of one mask head: how many there are, and over how many tiles each goes.
struct ListGrid {
  std::int64_t lists = 0;
  std::int64_t tiles = 0;
};

/// Run lists along one side of the tiles, from those along the other (column lists → row lists, or back), of `heads`
/// mask heads, numbered through all batch entries. Time is linear in the runs of both.
RunLists transposed_runs(const RunLists& lists, ListGrid grid, std::int64_t heads, Executor& executor);

}  // namespace flashmask
