// SPDX-License-Identifier: Apache-2.0
#include "partition/simple.h"

#include <algorithm>
#include <utility>

namespace flashmask {

std::vector<std::int64_t> even_shares(std::int64_t tiles, std::int32_t ranks, bool larger_first) {
  std::vector<std::int64_t> shares;
  for (std::int64_t rank = 0; rank < ranks; ++rank) shares.push_back(tiles * (rank + 1) / ranks - tiles * rank / ranks);
  if (larger_first) std::ranges::reverse(shares);
  return shares;
}

TileOwners contiguous_owners(std::int64_t tiles, std::int32_t ranks) {
  TileOwners owners;
  // The last tile may be ragged, so its rank is one of those with an extra tile, if there are any.
  const auto shares = even_shares(tiles, ranks);
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    owners.insert(owners.end(), static_cast<std::size_t>(shares[static_cast<std::size_t>(rank)]), rank);
  return owners;
}

TileOwners zigzag_owners(std::int64_t tiles, std::int32_t ranks) {
  TileOwners front, back;
  const auto shares = even_shares(tiles, ranks, true);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto share = static_cast<std::size_t>(shares[static_cast<std::size_t>(rank)]);
    front.insert(front.end(), share / 2, rank);
    back.insert(back.end(), share - share / 2, rank);
  }
  front.insert(front.end(), back.rbegin(), back.rend());
  return front;
}

Partition of_owners(const TileOwners& owners, std::int64_t tokens, std::int32_t ranks, std::int32_t tile,
                    std::string why) {
  std::vector<RankRun> runs;
  for (std::int64_t i = 0; i < std::ssize(owners); ++i)
    runs.push_back({{i * tile, std::min((i + 1) * tile, tokens)}, owners[static_cast<std::size_t>(i)]});
  return {tokens, ranks, std::move(runs), tile, std::move(why)};
}

}  // namespace flashmask
