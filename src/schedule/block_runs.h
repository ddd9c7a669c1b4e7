// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/block_map.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Removes from column run lists the tiles of blocks that a map leaves out. No tile may lie in two blocks.
RunLists runs_in_blocks(const RunLists& columns, const BlockMap& map, TileShape tile);

}  // namespace flashmask
