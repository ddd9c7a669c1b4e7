// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/partition.h"

namespace flashmask {

/// [tiles]: the rank that holds each tile.
using TileOwners = std::vector<std::int32_t>;

/// Returns how many tiles each rank holds if `tiles` are shared out evenly. The last rank, or the first if
/// `larger_first`, is among those with an extra tile.
std::vector<std::int64_t> even_shares(std::int64_t tiles, std::int32_t ranks, bool larger_first = false);

/// Gives each rank one run.
TileOwners contiguous_owners(std::int64_t tiles, std::int32_t ranks);

/// Gives each rank two runs, one from either end: under a causal mask the first is cheap where the second is expensive.
TileOwners zigzag_owners(std::int64_t tiles, std::int32_t ranks);

/// Makes the partition that cuts at tiles; the last tile ends with the tokens.
Partition of_owners(const TileOwners& owners, std::int64_t tokens, std::int32_t ranks, std::int32_t tile,
                    std::string why);

}  // namespace flashmask
