// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "flashmask/slice.h"
#include "partition/checks.h"
#include "partition/price.h"
#include "partition/tile_work.h"

namespace flashmask {
namespace {

/// Returns the loads under a partition whose cuts are not at tiles: a rank's tiles are those of its local mask.
std::vector<RankLoad> loads_of_slices(const Partition& partition, const Mask& mask, Executor& executor) {
  std::vector<RankLoad> loads(static_cast<std::size_t>(partition.ranks()));
  const std::vector<Need> all = needs(partition, mask, executor);
  for (const Need& need : all) {
    const std::int64_t columns = need.columns.end - need.columns.begin;
    loads[static_cast<std::size_t>(need.rank)].received += columns;
    loads[static_cast<std::size_t>(need.owner)].sent += columns;
  }
  const TileShape tile{partition.tile(), partition.tile()};
  const Span everything{0, partition.tokens()};
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank) {
    RankLoad& load = loads[static_cast<std::size_t>(rank)];
    const std::vector<Span>& own = partition.spans(rank);
    const auto tiles = [&](std::span<const Span> rows, std::span<const Span> columns) {
      return schedule(slice(mask, rows, columns, executor).lowered(), tile, Visit::active, executor);
    };
    const TileSchedule local = tiles(own, local_columns(partition, all, rank));
    load.tokens = partition.length(rank);
    load.tiles = local.counts().active();
    load.row_tiles = local.row_tiles() * mask.shape().batch * mask.shape().heads;
    load.column_tiles = tiles({&everything, 1}, own).counts().active();
  }
  return loads;
}

}  // namespace

std::vector<RankLoad> loads(const Partition& partition, const Mask& mask, Executor& executor) {
  check_mask_of("loads", partition, mask);
  if (partition.aligned()) return TileWork(mask, partition.tile(), executor).loads(partition);
  return loads_of_slices(partition, mask, executor);
}

PredictedTime predict(std::span<const RankLoad> loads, const MaskShape& mask, const PartitionOptions& options) {
  check_options(options);
  return Prices(options).time(loads, mask);
}

}  // namespace flashmask
