#include "flashmask/schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mask/check.h"
#include "schedule/column_runs.h"
#include "schedule/row_runs.h"
#include "schedule/tile_shape.h"

namespace flashmask {
namespace {

/// More pieces than workers even out uneven ones; pieces of a few lists cost more than they bring.
constexpr std::int64_t kPiecesPerWorker = 4;
constexpr std::int64_t kColumnListsPerPiece = 16;

void append(RunLists& lists, const RunLists& piece) {
  const auto base = static_cast<std::int64_t>(lists.runs.size());
  for (std::size_t i = 1; i < piece.offsets.size(); ++i) lists.offsets.push_back(base + piece.offsets[i]);
  lists.runs.insert(lists.runs.end(), piece.runs.begin(), piece.runs.end());
}

/// One vector of exactly the size that is needed: schedules are kept for as long as a model runs.
RunLists join(const std::vector<RunLists>& pieces, std::int64_t lists) {
  std::size_t runs = 0;
  for (const RunLists& piece : pieces) runs += piece.runs.size();
  RunLists joined;
  joined.offsets.reserve(static_cast<std::size_t>(lists) + 1);
  joined.runs.reserve(runs);
  joined.offsets.push_back(0);
  for (const RunLists& piece : pieces) append(joined, piece);
  return joined;
}

/// Shares [0, count) out in consecutive pieces; build(begin, end) gives the run lists of one.
template <class Build>
RunLists build_in_pieces(std::int64_t count, std::int64_t lists, std::int64_t least, Executor& executor,
                         const Build& build) {
  const std::int64_t most = executor.workers() == 1 ? 1 : executor.workers() * kPiecesPerWorker;
  const std::int64_t number = std::clamp<std::int64_t>(count / least, 1, most);
  std::vector<RunLists> pieces(static_cast<std::size_t>(number));
  executor.run(static_cast<int>(number), [&](int i) {
    pieces[static_cast<std::size_t>(i)] = build(count * i / number, count * (i + 1) / number);
  });
  return join(pieces, lists);
}

/// `lists` lists of one partial run over `tiles` tiles.
RunLists every_tile(std::int64_t lists, std::int64_t tiles) {
  const auto count = static_cast<std::size_t>(lists);
  RunLists all{std::vector<std::int64_t>(count + 1), {}};
  if (tiles == 0) return all;
  all.runs.assign(count, {0, static_cast<std::int32_t>(tiles), TileKind::partial});
  for (std::size_t i = 0; i <= count; ++i) all.offsets[i] = static_cast<std::int64_t>(i);
  return all;
}

void require_lists(const char* name, const RunLists& lists, std::int64_t expected) {
  if (lists.offsets.size() == static_cast<std::size_t>(expected) + 1) return;
  refuse("TileSchedule: " + std::string(name) + " holds " + counted(lists.offsets.size(), "offset") + "; give " +
         grouped(expected + 1) + ", one a list and the end");
}

std::size_t bytes_of(const RunLists& lists) {
  return lists.offsets.capacity() * sizeof(std::int64_t) + lists.runs.capacity() * sizeof(Run);
}

}  // namespace

TileSchedule::TileSchedule(const MaskShape& mask, TileShape tile, RunLists rows, RunLists columns)
    : mask_(mask), tile_(tile), rows_(std::move(rows)), columns_(std::move(columns)) {
  require_tile_shape("TileSchedule", tile);
  require_lists("rows", rows_, mask.batch * mask.heads * row_tiles());
  require_lists("columns", columns_, mask.batch * mask.heads * column_tiles());
}

TileCounts TileSchedule::counts() const {
  TileCounts counts;
  for (const Run& run : rows_.runs) {
    (run.kind == TileKind::full ? counts.full : counts.partial) += run.end - run.begin;
  }
  counts.skip = mask_.batch * mask_.heads * row_tiles() * column_tiles() - counts.active();
  return counts;
}

std::size_t TileSchedule::memory_bytes() const { return bytes_of(rows_) + bytes_of(columns_); }

TileSchedule schedule(const LoweredMask& mask, TileShape tile, Visit visit, Executor& executor) {
  require_tile_shape("schedule", tile);
  const MaskShape& shape = mask.shape();
  const std::int64_t heads = shape.batch * shape.heads;
  const TileGrid grid{row_tiles(shape, tile), column_tiles(shape, tile)};
  const std::int64_t row_lists = heads * grid.rows;
  const std::int64_t column_lists = heads * grid.columns;
  if (visit == Visit::all) {
    return {shape, tile, every_tile(row_lists, grid.columns), every_tile(column_lists, grid.rows)};
  }
  RunLists columns = build_in_pieces(
      column_lists, column_lists, kColumnListsPerPiece, executor,
      [&](std::int64_t begin, std::int64_t end) { return column_runs(mask.intervals(), tile, begin, end); });
  RunLists rows = build_in_pieces(heads, row_lists, 1, executor, [&](std::int64_t begin, std::int64_t end) {
    return row_runs(columns, grid, begin, end);
  });
  return {shape, tile, std::move(rows), std::move(columns)};
}

}  // namespace flashmask
