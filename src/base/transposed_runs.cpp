// SPDX-License-Identifier: Apache-2.0
#include "base/transposed_runs.h"

#include <algorithm>
#include <span>

#include "base/run_pieces.h"

namespace flashmask {
namespace {

/// A finished run of list `list` of the transposed lists.
struct ClosedRun {
  std::int32_t list = 0;
  Run run;
};

/// Returns the run that holds tile `begin`, from that tile on; between two runs, a run of skipped tiles. Drops runs
/// that end at or before it.
Run run_from(std::span<const Run>& runs, std::int32_t begin, std::int32_t tiles) {
  while (!runs.empty() && runs.front().end <= begin) runs = runs.subspan(1);
  if (runs.empty()) return {begin, tiles, TileKind::skip};
  const Run& next = runs.front();
  return next.begin > begin ? Run{begin, next.begin, TileKind::skip} : Run{begin, next.end, next.kind};
}

/// Sweeps the lists of one mask head in order and keeps the open run of every transposed list.
class Sweep {
 public:
  explicit Sweep(std::int64_t tiles) : open_(static_cast<std::size_t>(tiles), {0, 0, TileKind::skip}) {}

  /// Closes and opens runs where list `position` differs from the list before it.
  void step(std::span<const Run> before, std::span<const Run> now, std::int32_t position) {
    const auto tiles = static_cast<std::int32_t>(open_.size());
    for (std::int32_t tile = 0; tile < tiles;) {
      const Run old_run = run_from(before, tile, tiles);
      const Run new_run = run_from(now, tile, tiles);
      const std::int32_t end = std::min(old_run.end, new_run.end);
      if (old_run.kind != new_run.kind) {
        for (; tile < end; ++tile) switch_kind(tile, position, new_run.kind);
      }
      tile = end;
    }
  }

  /// Appends one list per tile. Runs of a list were closed in ascending order, so a counting sort suffices.
  void append_to(RunLists& lists) const {
    std::vector<std::int64_t> next(open_.size() + 1, lists.offsets.back());
    for (const ClosedRun& closed : closed_) ++next[static_cast<std::size_t>(closed.list) + 1];
    for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1] - lists.offsets.back();
    lists.offsets.insert(lists.offsets.end(), next.begin() + 1, next.end());
    lists.runs.resize(lists.runs.size() + closed_.size());
    for (const ClosedRun& closed : closed_) {
      lists.runs[static_cast<std::size_t>(next[static_cast<std::size_t>(closed.list)]++)] = closed.run;
    }
  }

 private:
  void switch_kind(std::int32_t list, std::int32_t position, TileKind kind) {
    Run& open = open_[static_cast<std::size_t>(list)];
    if (open.kind != TileKind::skip) closed_.push_back({list, {open.begin, position, open.kind}});
    open = {position, position, kind};
  }

  std::vector<Run> open_;
  std::vector<ClosedRun> closed_;
};

/// Transposes the lists of mask heads [begin, end).
RunLists transpose_heads(const RunLists& lists, ListGrid grid, std::int64_t begin, std::int64_t end) {
  RunLists transposed;
  transposed.offsets.push_back(0);
  for (std::int64_t head = begin; head < end; ++head) {
    Sweep sweep(grid.tiles);
    std::span<const Run> before;
    for (std::int64_t i = 0; i < grid.lists; ++i) {
      const std::span<const Run> now = lists.list(head * grid.lists + i);
      sweep.step(before, now, static_cast<std::int32_t>(i));
      before = now;
    }
    sweep.step(before, {}, static_cast<std::int32_t>(grid.lists));
    sweep.append_to(transposed);
  }
  return transposed;
}

}  // namespace

RunLists transposed_runs(const RunLists& lists, ListGrid grid, std::int64_t heads, Executor& executor) {
  return build_in_pieces(heads, 1, executor, [&](std::int64_t begin, std::int64_t end) {
    return transpose_heads(lists, grid, begin, end);
  });
}

}  // namespace flashmask
