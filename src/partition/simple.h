// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/partition.h"

namespace flashmask {

/// [tiles]: the rank that holds each tile.
using TileOwners = std::vector<std::int32_t>;

/// How many tiles each rank holds where `tiles` are shared out evenly. Ranks with one more come last, or first.
std::vector<std::int64_t> even_shares(std::int64_t tiles, std::int32_t ranks, bool larger_first = false);

/// One run a rank.
TileOwners contiguous_owners(std::int64_t tiles, std::int32_t ranks);

/// Two runs a rank, one from either end: under a causal mask the first is cheap where the second is dear.
TileOwners zigzag_owners(std::int64_t tiles, std::int32_t ranks);

/// The partition that cuts at tiles; the last one ends with the tokens.
Partition of_owners(const TileOwners& owners, std::int64_t tokens, std::int32_t ranks, std::int32_t tile,
                    std::string why);

}  // namespace flashmask
