// SPDX-License-Identifier: Apache-2.0
#include "partition/rank_sets.h"

namespace flashmask {

RankSets::RankSets(const Partition& partition, std::int64_t grain)
    : words_(static_cast<std::size_t>(partition.ranks() + 63) / 64), runs_(partition.runs().size()) {
  const int levels = std::bit_width(runs_);
  sets_.resize(static_cast<std::size_t>(levels) * runs_ * words_);
  for (std::size_t i = 0; i < runs_; ++i) {
    const RankRun& run = partition.runs()[i];
    run_of_.resize(static_cast<std::size_t>((run.tokens.end + grain - 1) / grain), static_cast<std::int32_t>(i));
    const auto rank = static_cast<std::size_t>(run.rank);
    sets_[i * words_ + rank / 64] = std::uint64_t{1} << rank % 64;
  }
  for (int level = 1; level < levels; ++level) {
    const std::size_t half = std::size_t{1} << (level - 1), whole = 2 * half;
    std::uint64_t* const to = sets_.data() + static_cast<std::size_t>(level) * runs_ * words_;
    const std::uint64_t* const from = to - runs_ * words_;
    for (std::size_t i = 0; i < (runs_ - whole + 1) * words_; ++i) to[i] = from[i] | from[i + half * words_];
  }
}

void RankSets::add_viewers(const RunLists& columns, std::int64_t tile, std::int64_t tiles, RankSet& ranks) const {
  for (std::int64_t list = tile; list + 1 < std::ssize(columns.offsets); list += tiles) {
    for (const Run& run : columns.list(list)) add(run.begin, run.end, ranks);
  }
}

}  // namespace flashmask
