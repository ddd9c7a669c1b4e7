// SPDX-License-Identifier: Apache-2.0
#include "mask/column_runs.h"

#include <algorithm>
#include <span>

#include "base/run_pieces.h"
#include "base/tile_shape.h"
#include "mask/tile_counter.h"

namespace flashmask {
namespace {

/// Returns the run lists of the columns of tiles [begin, end).
RunLists runs_between(const IntervalMask& mask, TileShape tile, std::int64_t begin, std::int64_t end) {
  const MaskShape& shape = mask.shape();
  const std::int64_t tiles = column_tiles(shape, tile);
  TileCounter counter(shape.rows, tile.rows);
  RunLists lists;
  lists.offsets.reserve(static_cast<std::size_t>(end - begin + 1));
  lists.offsets.push_back(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first_column = i % tiles * tile.columns;
    const std::int64_t columns = std::min<std::int64_t>(tile.columns, shape.columns - first_column);
    const std::int64_t first = i / tiles * shape.columns + first_column;
    const auto slice = [&](const std::int32_t* values) {
      return std::span(values + first, static_cast<std::size_t>(columns));
    };
    counter.add_begins(slice(mask.first_begin()));
    counter.add_ends(slice(mask.first_end()));
    counter.add_begins(slice(mask.second_begin()));
    counter.add_ends(slice(mask.second_end()));
    counter.drain(static_cast<std::int32_t>(columns), lists.runs);
    lists.offsets.push_back(static_cast<std::int64_t>(lists.runs.size()));
  }
  return lists;
}

}  // namespace

RunLists column_runs(const IntervalMask& mask, TileShape tile, Executor& executor) {
  const MaskShape& shape = mask.shape();
  const std::int64_t lists = shape.batch * shape.heads * column_tiles(shape, tile);
  return build_in_pieces(lists, kListsPerPiece, executor,
                         [&](std::int64_t begin, std::int64_t end) { return runs_between(mask, tile, begin, end); });
}

}  // namespace flashmask
