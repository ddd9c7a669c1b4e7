// SPDX-License-Identifier: Apache-2.0
#include "partition/measures.h"

#include <algorithm>
#include <numeric>

namespace flashmask {

LayerWork::LayerWork(std::span<const WeightedMask> masks, std::int32_t tile, Executor& executor) {
  for (const auto& [mask, weight] : masks) layers_.push_back({TileWork(*mask, tile, executor), weight});
  const auto tiles = static_cast<std::size_t>(layers_.front().work.tiles());
  measures_.rows.resize(tiles);
  measures_.columns.resize(tiles);
  measures_.crossing.resize(tiles + 2);
  measures_.passing.resize(tiles + 2);
  for (const Layer& layer : layers_)
    measures_.heads = std::lcm(measures_.heads, std::max<std::int64_t>(layer.work.shape().heads, 1));
  for (const Layer& layer : layers_) {
    const std::int64_t scale = layer.weight * measures_.heads / std::max<std::int64_t>(layer.work.shape().heads, 1);
    for (std::size_t i = 0; i < tiles; ++i) {
      measures_.rows[i] += scale * (layer.work.row_visits()[i] + 2 * layer.work.lists());
      measures_.columns[i] += scale * (layer.work.column_visits()[i] + 2 * layer.work.lists());
    }
    add_crossing(layer);
  }
  for (auto* const counts : {&measures_.crossing, &measures_.passing})
    std::inclusive_scan(counts->begin(), counts->end(), counts->begin());
}

/// Adds changes from cut to cut and from tile to tile; the constructor sums them up.
void LayerWork::add_crossing(const Layer& layer) {
  for (std::int64_t column = 0; column < layer.work.tiles(); ++column) {
    const auto [first_row, last_row] = layer.work.viewing_rows(column);
    if (last_row < first_row) continue;
    const auto first = static_cast<std::size_t>(std::min(column, first_row));
    const auto last = static_cast<std::size_t>(std::max(column, last_row));
    measures_.crossing[first + 1] += layer.weight;
    measures_.crossing[last + 1] -= layer.weight;
    if (last == first) continue;
    measures_.passing[first + 1] += layer.weight;
    measures_.passing[last] -= layer.weight;
    if (first_row >= column || last_row <= column) continue;
    // The column tile does not count at itself: a cut inside it may leave each of its columns with rows on one side
    // only.
    measures_.passing[static_cast<std::size_t>(column)] -= layer.weight;
    measures_.passing[static_cast<std::size_t>(column) + 1] += layer.weight;
  }
}

std::int64_t LayerWork::time(const Partition& partition, std::int32_t node, const Prices& prices) const {
  std::int64_t time = 0;
  for (const auto& [work, weight] : layers_) {
    time += weight * prices.time(work.loads(partition), work.shape()).total();
    if (node != 0) time += weight * prices.between_nodes(work.most_between(partition, node), work.shape().batch);
  }
  return time;
}

}  // namespace flashmask
