// SPDX-License-Identifier: Apache-2.0
#include "partition/balance.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

namespace flashmask {
namespace {

using Tiles = std::vector<std::size_t>;

/// Orders a rank's tiles by work, the cheapest first.
auto by_work(std::span<const std::int64_t> work) {
  return [work](std::size_t tile) { return std::pair(work[tile], tile); };
}

/// [ranks]: the tiles of each rank that may change hands, cheapest first. The last tile may be ragged and stays where
/// it is.
std::vector<Tiles> tiles_of(const TileOwners& owners, std::span<const std::int64_t> work, std::int32_t ranks) {
  std::vector<Tiles> tiles(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i + 1 < owners.size(); ++i) tiles[static_cast<std::size_t>(owners[i])].push_back(i);
  for (Tiles& of_rank : tiles) std::ranges::sort(of_rank, {}, by_work(work));
  return tiles;
}

/// Replaces tile `old` by `other` and keeps `tiles` in order.
void exchange(Tiles& tiles, std::size_t old, std::size_t other, std::span<const std::int64_t> work) {
  const auto position = [&](std::size_t tile) {
    return std::ranges::lower_bound(tiles, by_work(work)(tile), {}, by_work(work));
  };
  tiles.erase(position(old));
  tiles.insert(position(other), other);
}

/// Returns one tile of `dear` and one of `cheap`, both in ascending order of work, whose difference in work is nearest
/// to `difference`.
std::pair<std::size_t, std::size_t> nearest_pair(std::span<const std::size_t> dear, std::span<const std::size_t> cheap,
                                                 std::span<const std::int64_t> work, std::int64_t difference) {
  std::pair<std::size_t, std::size_t> best{dear[0], cheap[0]};
  const auto miss = [&](std::size_t a, std::size_t b) { return std::abs(work[a] - work[b] - difference); };
  for (std::size_t i = 0, j = 0; i < dear.size() && j < cheap.size();) {
    if (miss(dear[i], cheap[j]) < miss(best.first, best.second)) best = {dear[i], cheap[j]};
    work[dear[i]] - work[cheap[j]] < difference ? ++i : ++j;
  }
  return best;
}

}  // namespace

std::vector<std::int64_t> work_of_ranks(const TileOwners& owners, std::span<const std::int64_t> work,
                                        std::int32_t ranks) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < owners.size(); ++i) sums[static_cast<std::size_t>(owners[i])] += work[i];
  return sums;
}

bool is_even(std::span<const std::int64_t> ranks, std::span<const std::int64_t> work) {
  const std::int64_t total = std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
  const std::int64_t mean = total / std::ssize(ranks);
  const std::int64_t most = std::ranges::max(ranks);
  const std::int64_t tile = work.empty() ? 0 : std::ranges::max(work);
  return most - mean <= std::max(mean * 3 / 100, tile);
}

void even_out(TileOwners& owners, std::span<const std::int64_t> work, std::int32_t ranks) {
  std::vector<std::int64_t> sums = work_of_ranks(owners, work, ranks);
  const std::int64_t mean = std::accumulate(sums.begin(), sums.end(), std::int64_t{0}) / ranks;
  if (std::ranges::max(sums) - mean <= mean * 3 / 100) return;
  std::vector<Tiles> tiles = tiles_of(owners, work, ranks);
  while (true) {
    const auto most = std::ranges::max_element(sums), least = std::ranges::min_element(sums);
    if (*most - mean <= mean * 3 / 100) return;
    Tiles& dear = tiles[static_cast<std::size_t>(most - sums.begin())];
    Tiles& cheap = tiles[static_cast<std::size_t>(least - sums.begin())];
    if (dear.empty() || cheap.empty()) return;
    const auto [a, b] = nearest_pair(dear, cheap, work, (*most - *least) / 2);
    const std::int64_t moved = work[a] - work[b];
    if (moved <= 0 || moved >= *most - *least) return;
    std::swap(owners[a], owners[b]);
    exchange(dear, a, b, work);
    exchange(cheap, b, a, work);
    *most -= moved;
    *least += moved;
  }
}

void enlarge_last_owner(TileOwners& owners, std::int32_t ranks) {
  if (owners.empty()) return;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
  for (const std::int32_t owner : owners) ++counts[static_cast<std::size_t>(owner)];
  const auto most = static_cast<std::int32_t>(std::ranges::max_element(counts) - counts.begin());
  if (counts[static_cast<std::size_t>(owners.back())] == counts[static_cast<std::size_t>(most)]) return;
  // The last tile of rank `most` is the likeliest to lie beside tiles of the new owner.
  *std::find(owners.rbegin(), owners.rend(), most) = owners.back();
}

}  // namespace flashmask
