// SPDX-License-Identifier: Apache-2.0
#include "partition/tile_work.h"

#include <algorithm>

#include "partition/rank_sets.h"

namespace flashmask {
namespace {

/// [tiles]: the active tiles of each row, or column, of tiles, summed over lists in (batch, head, tile) order.
std::vector<std::int64_t> visits(const RunLists& lists, std::int64_t tiles) {
  std::vector<std::int64_t> visits(static_cast<std::size_t>(tiles));
  for (std::int64_t i = 0; i + 1 < std::ssize(lists.offsets); ++i) {
    for (const Run& run : lists.list(i)) visits[static_cast<std::size_t>(i % tiles)] += run.end - run.begin;
  }
  return visits;
}

}  // namespace

TileWork::TileWork(const Mask& mask, std::int32_t tile, Executor& executor)
    : tiles_(schedule(mask.lowered(), {tile, tile}, Visit::active, executor)),
      row_visits_(visits(tiles_.rows(), tiles_.row_tiles())),
      column_visits_(visits(tiles_.columns(), tiles_.column_tiles())) {}

std::pair<std::int64_t, std::int64_t> TileWork::viewing_rows(std::int64_t column) const {
  std::pair<std::int64_t, std::int64_t> rows{tiles(), -1};
  for (std::int64_t list = column; list < lists() * tiles(); list += tiles()) {
    const std::span<const Run> runs = tiles_.columns().list(list);
    if (runs.empty()) continue;
    rows.first = std::min<std::int64_t>(rows.first, runs.front().begin);
    rows.second = std::max<std::int64_t>(rows.second, runs.back().end - 1);
  }
  return rows;
}

template <class Body>
void TileWork::for_each_exchange(const Partition& partition, const Body& body) const {
  const RankSets holders(partition, partition.tile());
  RankSet viewers = holders.none();
  for (const RankRun& run : partition.runs()) {
    for (std::int64_t begin = run.tokens.begin; begin < run.tokens.end; begin += partition.tile()) {
      const std::int64_t columns = std::min<std::int64_t>(partition.tile(), run.tokens.end - begin);
      std::ranges::fill(viewers, 0);
      holders.add_viewers(tiles_.columns(), begin / partition.tile(), tiles(), viewers);
      for_each_rank(viewers, [&](std::int32_t rank) {
        if (rank != run.rank) body(rank, run.rank, columns);
      });
    }
  }
}

std::vector<RankLoad> TileWork::loads(const Partition& partition) const {
  std::vector<RankLoad> loads(static_cast<std::size_t>(partition.ranks()));
  for (const RankRun& run : partition.runs()) {
    RankLoad& own = loads[static_cast<std::size_t>(run.rank)];
    own.tokens += run.tokens.end - run.tokens.begin;
    for (std::int64_t begin = run.tokens.begin; begin < run.tokens.end; begin += partition.tile()) {
      const auto tile = static_cast<std::size_t>(begin / partition.tile());
      own.row_tiles += lists();
      own.tiles += row_visits_[tile];
      own.column_tiles += column_visits_[tile];
    }
  }
  for_each_exchange(partition, [&](std::int32_t rank, std::int32_t owner, std::int64_t columns) {
    loads[static_cast<std::size_t>(rank)].received += columns;
    loads[static_cast<std::size_t>(owner)].sent += columns;
  });
  return loads;
}

std::int64_t TileWork::most_between(const Partition& partition, std::int32_t node) const {
  std::vector<std::int64_t> received(static_cast<std::size_t>(partition.ranks())), sent = received;
  for_each_exchange(partition, [&](std::int32_t rank, std::int32_t owner, std::int64_t columns) {
    if (rank / node == owner / node) return;
    received[static_cast<std::size_t>(rank)] += columns;
    sent[static_cast<std::size_t>(owner)] += columns;
  });
  return std::max(std::ranges::max(received), std::ranges::max(sent));
}

}  // namespace flashmask
