// SPDX-License-Identifier: Apache-2.0
#include "cpu/grad_query_turns.h"

#include <algorithm>
#include <thread>

namespace flashmask::cpu {
namespace {

struct Position {
  std::int32_t before = 0;  ///< active tiles of the row before this one
  std::int32_t total = 0;
};

Position position_in_row(const RunList& runs, std::int64_t column_tile) {
  Position position;
  for (std::int64_t i = 0; i < runs.count; ++i) {
    const Run& run = runs.runs[i];
    const auto column = static_cast<std::int32_t>(column_tile);
    position.total += run.end - run.begin;
    position.before += std::clamp(column, run.begin, run.end) - run.begin;
  }
  return position;
}

void wait_for(const std::atomic<std::int32_t>& added, std::int32_t before) {
  constexpr int kSpins = 2000;
  for (int spin = 0; added.load(std::memory_order_acquire) != before; ++spin)
    if (spin > kSpins) std::this_thread::yield();
}

}  // namespace

Turn await_turn(GradQueryTurns& turns, std::int64_t row_tile, std::int64_t column_tile) {
  const Position position = position_in_row(turns.mask.row_runs(row_tile), column_tile);
  wait_for(turns.added[row_tile], position.before);
  return {position.before == 0, position.before + 1 == position.total};
}

void pass_turn(GradQueryTurns& turns, std::int64_t row_tile) {
  turns.added[row_tile].fetch_add(1, std::memory_order_release);
}

}  // namespace flashmask::cpu
