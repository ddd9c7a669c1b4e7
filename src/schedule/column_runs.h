#pragma once

#include <cstdint>

#include "flashmask/interval_mask.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// Run lists of the columns of tiles [begin, end), numbered through all batch entries and mask heads: the tiles of one
/// column of tiles from top to bottom. Exact, in time linear in the columns of scores.
RunLists column_runs(const IntervalMask& mask, TileShape tile, std::int64_t begin, std::int64_t end);

}  // namespace flashmask
