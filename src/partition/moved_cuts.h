// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "flashmask/partition.h"

namespace flashmask {

/// Returns how far a rank's tokens may be from an even share for the sake of free cuts: 1 % of it or half a tile,
/// whichever is more.
std::int64_t most_tokens_over(std::int64_t tokens, std::int32_t ranks, std::int32_t tile);

/// Returns the runs with each cut moved to a free one (schedule/free_cuts.h), so that no rank fetches anything; nullopt
/// if a rank would then hold too many tokens or too few.
std::optional<std::vector<RankRun>> moved_to_free_cuts(const Partition& partition, std::span<const std::int64_t> cuts);

}  // namespace flashmask
