#pragma once

#include <cstdint>

#include "flashmask/tile.h"

namespace flashmask {

/// Run lists of one mask head: how many there are, and over how many tiles each goes.
struct ListGrid {
  std::int64_t lists = 0;
  std::int64_t tiles = 0;
};

/// Run lists along one side of the tiles turned into those along the other (column lists → row lists, or back), for the
/// mask heads [begin, end), numbered through all batch entries. Time is linear in the runs of both.
RunLists turned_runs(const RunLists& lists, ListGrid grid, std::int64_t begin, std::int64_t end);

}  // namespace flashmask
