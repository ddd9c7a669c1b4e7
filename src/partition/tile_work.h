// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "flashmask/partition.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// The cost of the row tiles and column tiles of a mask, and which of them meet.
class TileWork {
 public:
  TileWork(const Mask& mask, std::int32_t tile, Executor& executor);

  const MaskShape& shape() const { return tiles_.mask_shape(); }
  std::int64_t tiles() const { return tiles_.row_tiles(); }
  /// Returns the number of row tiles, and of column tiles, with the same number: one per batch entry and mask head.
  std::int64_t lists() const { return shape().batch * shape().heads; }

  /// [tiles]: active tiles of each row of tiles, and of each column of tiles, in all lists.
  const std::vector<std::int64_t>& row_visits() const { return row_visits_; }
  const std::vector<std::int64_t>& column_visits() const { return column_visits_; }

  /// Returns the first and the last row tile that see any column of a tile; last < first if none does.
  std::pair<std::int64_t, std::int64_t> viewing_rows(std::int64_t column) const;

  /// Returns the load of each rank under a partition that cuts at tiles.
  std::vector<RankLoad> loads(const Partition& partition) const;

  /// Returns the most columns that a rank sends to, or receives from, other nodes of `node` ranks each.
  std::int64_t most_between(const Partition& partition, std::int32_t node) const;

 private:
  /// Calls body(rank, owner, columns) for each column tile and each rank, other than its owner, that needs it.
  template <class Body>
  void for_each_exchange(const Partition& partition, const Body& body) const;

  TileSchedule tiles_;
  std::vector<std::int64_t> row_visits_, column_visits_;
};

}  // namespace flashmask
