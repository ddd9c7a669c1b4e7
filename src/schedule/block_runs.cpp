// SPDX-License-Identifier: Apache-2.0
#include "schedule/block_runs.h"

#include <algorithm>
#include <cstdint>

#include "base/run_builder.h"
#include "base/tile_shape.h"

namespace flashmask {

RunLists runs_in_blocks(const RunLists& columns, const BlockMap& map, TileShape tile) {
  const MaskShape& shape = map.shape();
  const std::int64_t tiles = column_tiles(shape, tile);
  const auto tiles_per_block = static_cast<std::int32_t>(map.block() / tile.rows);
  RunBuilder kept;
  for (std::int64_t i = 0; i < shape.batch * shape.heads * tiles; ++i) {
    const std::int64_t head = i / tiles % shape.heads;
    const std::int64_t batch = i / tiles / shape.heads;
    const std::int64_t block_column = i % tiles * tile.columns / map.block();
    for (const Run& run : columns.list(i)) {
      for (std::int32_t begin = run.begin; begin < run.end;) {
        const std::int32_t block_row = begin / tiles_per_block;
        const std::int32_t end = std::min((block_row + 1) * tiles_per_block, run.end);
        if (map.keeps(batch, head, block_row, block_column)) kept.add({begin, end, run.kind});
        begin = end;
      }
    }
    kept.end_list();
  }
  return kept.take();
}

}  // namespace flashmask
