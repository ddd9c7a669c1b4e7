// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "partition/simple.h"

namespace flashmask {

/// [ranks]: the work of each rank, summed over its tiles.
std::vector<std::int64_t> work_of_ranks(const TileOwners& owners, std::span<const std::int64_t> work,
                                        std::int32_t ranks);

/// Whether the busiest rank has at most 3 % more work than the mean, or at most one tile's worth more.
bool is_even(std::span<const std::int64_t> ranks, std::span<const std::int64_t> work);

/// Swaps tiles between the busiest and the least busy rank until work is even or no swap helps.
void even_out(TileOwners& owners, std::span<const std::int64_t> work, std::int32_t ranks);

/// Gives the owner of the last tile, which may be ragged, as many tiles as any rank has, by moving one tile to it if it
/// has fewer.
void enlarge_last_owner(TileOwners& owners, std::int32_t ranks);

}  // namespace flashmask
