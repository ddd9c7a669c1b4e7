// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/executor.h"
#include "flashmask/interval_mask.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Returns one run list per column of tiles, from top to bottom; the lists are numbered through all batch entries and
/// mask heads. Exact, in time linear in the columns of scores.
RunLists column_runs(const IntervalMask& mask, TileShape tile, Executor& executor);

}  // namespace flashmask
