#include "schedule/row_runs.h"

#include <algorithm>
#include <span>

namespace flashmask {
namespace {

struct RowRun {
  std::int32_t row_tile = 0;
  Run run;
};

/// The run that holds tile `begin`, from there on; what lies between runs is one of skip. Drops runs that end before.
Run run_from(std::span<const Run>& runs, std::int32_t begin, std::int32_t tiles) {
  while (!runs.empty() && runs.front().end <= begin) runs = runs.subspan(1);
  if (runs.empty()) return {begin, tiles, TileKind::skip};
  const Run& next = runs.front();
  return next.begin > begin ? Run{begin, next.begin, TileKind::skip} : Run{begin, next.end, next.kind};
}

/// Sweeps one mask head from left to right, with the run that is open in every row of tiles.
class RowSweep {
 public:
  explicit RowSweep(std::int64_t row_tiles) : open_(static_cast<std::size_t>(row_tiles), {0, 0, TileKind::skip}) {}

  /// Closes and opens runs where the column of tiles `column` differs from the one before it.
  void step(std::span<const Run> before, std::span<const Run> now, std::int32_t column) {
    const auto tiles = static_cast<std::int32_t>(open_.size());
    for (std::int32_t tile = 0; tile < tiles;) {
      const Run old_run = run_from(before, tile, tiles);
      const Run new_run = run_from(now, tile, tiles);
      const std::int32_t end = std::min(old_run.end, new_run.end);
      if (old_run.kind != new_run.kind) {
        for (; tile < end; ++tile) switch_kind(tile, column, new_run.kind);
      }
      tile = end;
    }
  }

  /// Appends one list for every row of tiles. Runs of a row were closed in ascending order, so that counting sorts
  /// them.
  void append_to(RunLists& lists) const {
    std::vector<std::int64_t> next(open_.size() + 1, lists.offsets.back());
    for (const RowRun& closed : closed_) ++next[static_cast<std::size_t>(closed.row_tile) + 1];
    for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1] - lists.offsets.back();
    lists.offsets.insert(lists.offsets.end(), next.begin() + 1, next.end());
    lists.runs.resize(lists.runs.size() + closed_.size());
    for (const RowRun& closed : closed_) {
      lists.runs[static_cast<std::size_t>(next[static_cast<std::size_t>(closed.row_tile)]++)] = closed.run;
    }
  }

 private:
  void switch_kind(std::int32_t row_tile, std::int32_t column, TileKind kind) {
    Run& open = open_[static_cast<std::size_t>(row_tile)];
    if (open.kind != TileKind::skip) closed_.push_back({row_tile, {open.begin, column, open.kind}});
    open = {column, column, kind};
  }

  std::vector<Run> open_;
  std::vector<RowRun> closed_;
};

}  // namespace

RunLists row_runs(const RunLists& columns, TileGrid grid, std::int64_t begin, std::int64_t end) {
  RunLists lists;
  lists.offsets.push_back(0);
  for (std::int64_t head = begin; head < end; ++head) {
    RowSweep sweep(grid.rows);
    std::span<const Run> before;
    for (std::int64_t column = 0; column < grid.columns; ++column) {
      const std::span<const Run> now = columns.list(head * grid.columns + column);
      sweep.step(before, now, static_cast<std::int32_t>(column));
      before = now;
    }
    sweep.step(before, {}, static_cast<std::int32_t>(grid.columns));
    sweep.append_to(lists);
  }
  return lists;
}

}  // namespace flashmask
