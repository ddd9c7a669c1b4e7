// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checks.h"

namespace flashmask {
namespace {

std::string text(const RankRun& run) {
  return "[" + grouped(run.tokens.begin) + ", " + grouped(run.tokens.end) + ") of rank " + grouped(run.rank);
}

void check_run(const RankRun& run, std::int64_t tokens, std::int32_t ranks) {
  if (run.rank < 0 || run.rank >= ranks)
    refuse("partition: " + text(run) + " is of no rank; give ranks 0 to " + grouped(ranks - 1));
  if (run.tokens.begin < 0 || run.tokens.end < run.tokens.begin || run.tokens.end > tokens)
    refuse("partition: " + text(run) + " is no run of " + grouped(tokens) +
           " tokens; give 0 <= begin <= end <= " + grouped(tokens));
}

/// Throws unless the runs, which are in ascending order, hold each token once.
void check_each_once(const std::vector<RankRun>& runs, std::int64_t tokens) {
  std::int64_t end = 0;
  for (const RankRun& run : runs) {
    if (run.tokens.begin > end)
      refuse("partition: no rank holds token " + grouped(end) + "; give each token to one rank");
    if (run.tokens.begin < end)
      refuse("partition: token " + grouped(run.tokens.begin) + " lies in two runs, the second being " + text(run) +
             "; give each token to one rank");
    end = run.tokens.end;
  }
  if (end < tokens) refuse("partition: no rank holds token " + grouped(end) + "; give each token to one rank");
}

/// Returns the runs in ascending order, without empty ones.
std::vector<RankRun> in_order(std::vector<RankRun> runs) {
  std::erase_if(runs, [](const RankRun& run) { return run.tokens.begin == run.tokens.end; });
  std::ranges::sort(runs, {}, [](const RankRun& run) { return run.tokens.begin; });
  return runs;
}

std::vector<RankRun> joined(const std::vector<RankRun>& runs) {
  std::vector<RankRun> out;
  for (const RankRun& run : runs) {
    if (!out.empty() && out.back().rank == run.rank) {
      out.back().tokens.end = run.tokens.end;
    } else {
      out.push_back(run);
    }
  }
  return out;
}

}  // namespace

Partition::Partition(std::int64_t tokens, std::int32_t ranks, std::vector<RankRun> runs, std::int32_t tile,
                     std::string why)
    : tokens_(tokens), tile_(tile), grain_(tile), why_(std::move(why)) {
  check_size("partition", "tokens", tokens);
  if (ranks < 1) refuse("partition: " + grouped(ranks) + " ranks; give at least one");
  if (tile < 1) refuse("partition: tile is " + grouped(tile) + "; give at least one token");
  for (const RankRun& run : runs) check_run(run, tokens, ranks);
  runs = in_order(std::move(runs));
  check_each_once(runs, tokens);
  runs_ = joined(runs);
  spans_.resize(static_cast<std::size_t>(ranks));
  for (const RankRun& run : runs_) {
    spans_[static_cast<std::size_t>(run.rank)].push_back(run.tokens);
    grain_ = static_cast<std::int32_t>(std::gcd<std::int64_t>(grain_, run.tokens.begin));
  }
}

std::int64_t Partition::length(std::int32_t rank) const {
  std::int64_t length = 0;
  for (const Span& span : spans(rank)) length += span.end - span.begin;
  return length;
}

}  // namespace flashmask
