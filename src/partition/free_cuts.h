// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "flashmask/partition.h"

namespace flashmask {

/// Tokens, ascending, before which a sequence can be cut for free: no row on one side sees a column on the other, under
/// any of the masks. The first token and the end are among them.
std::vector<std::int64_t> free_cuts(std::span<const WeightedMask> masks, std::int64_t tokens, Executor& executor);

/// How many tokens more or fewer than an even share a rank may hold for the sake of free cuts: 1 %, or half a tile.
std::int64_t most_tokens_over(std::int64_t tokens, std::int32_t ranks, std::int32_t tile);

/// The runs with each cut moved to a free one, so that nobody fetches anything; nothing where some rank would then hold
/// too many tokens, or too few.
std::optional<std::vector<RankRun>> moved_to_free_cuts(const Partition& partition, std::span<const std::int64_t> cuts);

}  // namespace flashmask
