// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/bit_mask.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Returns one run list for each of the rows of tiles [begin, end), from left to right; rows of tiles are numbered
/// through all batch entries and mask heads. Exact for any tile shape; time is linear in the cells that hold a visible
/// score.
RunLists bit_row_runs(const BitMask& mask, TileShape tile, std::int64_t begin, std::int64_t end);

}  // namespace flashmask
