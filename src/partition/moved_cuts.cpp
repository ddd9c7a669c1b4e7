// SPDX-License-Identifier: Apache-2.0
#include "partition/moved_cuts.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace flashmask {
namespace {

/// Returns the nearest free cut at or before a token and the nearest at or after it.
std::array<std::int64_t, 2> nearest(std::span<const std::int64_t> cuts, std::int64_t token) {
  const auto above = std::ranges::lower_bound(cuts, token);
  return {*above == token ? token : *(above - 1), *above};
}

}  // namespace

std::int64_t most_tokens_over(std::int64_t tokens, std::int32_t ranks, std::int32_t tile) {
  return std::max<std::int64_t>(tokens / ranks / 100, tile / 2);
}

std::optional<std::vector<RankRun>> moved_to_free_cuts(const Partition& partition, std::span<const std::int64_t> cuts) {
  std::vector<RankRun> runs = partition.runs();
  std::vector<std::int64_t> excess(static_cast<std::size_t>(partition.ranks()));
  const std::int64_t tokens = partition.tokens(), ranks = partition.ranks();
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    excess[static_cast<std::size_t>(rank)] = partition.length(rank) - tokens / ranks;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    std::int64_t& left = excess[static_cast<std::size_t>(runs[i - 1].rank)];
    std::int64_t& right = excess[static_cast<std::size_t>(runs[i].rank)];
    const std::int64_t from = runs[i].tokens.begin;
    const auto worse = [&](std::int64_t to) {
      return std::max(std::abs(left + to - from), std::abs(right - to + from));
    };
    const std::array<std::int64_t, 2> choice = nearest(cuts, from);
    const std::int64_t to = worse(choice[0]) <= worse(choice[1]) ? choice[0] : choice[1];
    if (to < runs[i - 1].tokens.begin) return std::nullopt;
    runs[i].tokens.begin = runs[i - 1].tokens.end = to;
    left += to - from;
    right -= to - from;
  }
  const std::int64_t most = most_tokens_over(tokens, partition.ranks(), partition.tile());
  const bool even =
      std::ranges::all_of(excess, [&](std::int64_t tokens_over) { return std::abs(tokens_over) <= most; });
  return even ? std::optional(std::move(runs)) : std::nullopt;
}

}  // namespace flashmask
