// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "flashmask/partition.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// What the row tiles and the column tiles of a mask cost, and which of them meet.
class TileWork {
 public:
  TileWork(const Mask& mask, std::int32_t tile, Executor& executor);

  const MaskShape& shape() const { return tiles_.mask_shape(); }
  std::int64_t tiles() const { return tiles_.row_tiles(); }
  /// Row tiles, and column tiles, of one number: one a batch entry and mask head.
  std::int64_t lists() const { return shape().batch * shape().heads; }

  /// [tiles]: active tiles of each row of tiles, and of each column, in all lists.
  const std::vector<std::int64_t>& row_visits() const { return row_visits_; }
  const std::vector<std::int64_t>& column_visits() const { return column_visits_; }

  /// The first and the last row tile that see any of a column tile; the last comes first where none does.
  std::pair<std::int64_t, std::int64_t> viewing_rows(std::int64_t column) const;

  /// Of a partition that cuts at tiles.
  std::vector<RankLoad> loads(const Partition& partition) const;

  /// Columns that the busiest rank sends to, or receives from, other nodes of `node` ranks.
  std::int64_t most_between(const Partition& partition, std::int32_t node) const;

 private:
  /// Calls body(rank, owner, columns) for each column tile and each rank but its owner that needs it.
  template <class Body>
  void for_each_exchange(const Partition& partition, const Body& body) const;

  TileSchedule tiles_;
  std::vector<std::int64_t> row_visits_, column_visits_;
};

}  // namespace flashmask
