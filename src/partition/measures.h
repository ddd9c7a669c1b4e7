// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "partition/price.h"
#include "partition/tile_work.h"

namespace flashmask {

/// Measures of each tile of a sequence, summed over all masks by weight: what should be even among ranks, and what a
/// cut costs.
struct TileMeasures {
  std::vector<std::int64_t> rows;      ///< [tiles] work of the row tile; see RankLoad::work()
  std::vector<std::int64_t> columns;   ///< [tiles] work of the column tile
  std::vector<std::int64_t> crossing;  ///< [tiles + 1] column tiles that meet rows across the cut before tile i
  std::vector<std::int64_t> passing;   ///< [tiles] other column tiles that meet rows across tile i
  std::int64_t heads = 1;              ///< work is in tiles of 1 / heads of the query heads
};

/// The tile work of the masks of a model's layers.
class LayerWork {
 public:
  LayerWork(std::span<const WeightedMask> masks, std::int32_t tile, Executor& executor);

  const TileMeasures& measures() const { return measures_; }

  /// Returns the time of all layers in nanoseconds for a partition that cuts at tiles, over nodes of `node` ranks; 0: a
  /// single node.
  std::int64_t time(const Partition& partition, std::int32_t node, const Prices& prices) const;

 private:
  struct Layer {
    TileWork work;
    std::int64_t weight;
  };
  void add_crossing(const Layer& layer);

  std::vector<Layer> layers_;
  TileMeasures measures_;
};

}  // namespace flashmask
