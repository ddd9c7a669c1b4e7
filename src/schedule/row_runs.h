#pragma once

#include <cstdint>

#include "flashmask/schedule.h"

namespace flashmask {

/// How many tiles one mask head has.
struct TileGrid {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Turns column run lists into row run lists of the same tiles, for the mask heads [begin, end), numbered through all
/// batch entries. Time is linear in the runs of both.
RunLists row_runs(const RunLists& columns, TileGrid grid, std::int64_t begin, std::int64_t end);

}  // namespace flashmask
