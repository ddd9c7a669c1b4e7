// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/block_map.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Column run lists without the tiles of the blocks that a map leaves out. No tile lies in two blocks.
RunLists runs_in_blocks(const RunLists& columns, const BlockMap& map, TileShape tile);

}  // namespace flashmask
