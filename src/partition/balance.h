// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "partition/simple.h"

namespace flashmask {

/// [ranks]: the sum over the tiles of each.
std::vector<std::int64_t> work_of_ranks(const TileOwners& owners, std::span<const std::int64_t> work,
                                        std::int32_t ranks);

/// Whether the busiest of the ranks has at most 3 % more than the mean, or no more than one tile's worth.
bool is_even(std::span<const std::int64_t> ranks, std::span<const std::int64_t> work);

/// Swaps tiles between the busiest rank and the idlest until work is even, or no swap helps.
void even_out(TileOwners& owners, std::span<const std::int64_t> work, std::int32_t ranks);

/// Gives the last tile, which may be ragged, to a rank that has as many tiles as any.
void enlarge_last_owner(TileOwners& owners, std::int32_t ranks);

}  // namespace flashmask
