// SPDX-License-Identifier: Apache-2.0
#include "flashmask/schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checks.h"
#include "base/run_pieces.h"
#include "base/tile_shape.h"
#include "base/transposed_runs.h"
#include "flashmask/block_map.h"
#include "mask/column_runs.h"
#include "mask/to_bits.h"
#include "schedule/bit_runs.h"
#include "schedule/block_runs.h"

namespace flashmask {
namespace {

/// Returns `lists` lists, each of one partial run over `tiles` tiles.
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

namespace {

/// Schedules intervals: reads columns of tiles off them, then transposes these into rows of tiles.
TileSchedule schedule_intervals(const LoweredMask& mask, TileShape tile, Executor& executor) {
  const MaskShape& shape = mask.shape();
  const std::int64_t heads = shape.batch * shape.heads;
  const ListGrid grid{column_tiles(shape, tile), row_tiles(shape, tile)};
  RunLists columns = column_runs(mask.intervals(), tile, executor);
  if (mask.blocks() != nullptr) columns = runs_in_blocks(columns, *mask.blocks(), tile);
  RunLists rows = transposed_runs(columns, grid, heads, executor);
  return {shape, tile, std::move(rows), std::move(columns)};
}

/// Schedules bits: reads rows of tiles off them, then transposes these into columns of tiles.
TileSchedule schedule_bits(const BitMask& mask, TileShape tile, Executor& executor) {
  const MaskShape& shape = mask.shape();
  const std::int64_t heads = shape.batch * shape.heads;
  const ListGrid grid{row_tiles(shape, tile), column_tiles(shape, tile)};
  const std::int64_t lists = heads * grid.lists;
  RunLists rows = build_in_pieces(lists, kListsPerPiece, executor, [&](std::int64_t begin, std::int64_t end) {
    return bit_row_runs(mask, tile, begin, end);
  });
  RunLists columns = transposed_runs(rows, grid, heads, executor);
  return {shape, tile, std::move(rows), std::move(columns)};
}

/// Whether no tile lies in two blocks of the mask's block map, if it has one.
bool in_whole_blocks(const LoweredMask& mask, TileShape tile) {
  const std::int64_t block = mask.blocks() == nullptr ? 0 : mask.blocks()->block();
  return block % tile.rows == 0 && block % tile.columns == 0;
}

}  // namespace

TileSchedule schedule(const LoweredMask& mask, TileShape tile, Visit visit, Executor& executor) {
  require_tile_shape("schedule", tile);
  if (visit == Visit::all) {
    const MaskShape& shape = mask.shape();
    const std::int64_t heads = shape.batch * shape.heads;
    const std::int64_t rows = row_tiles(shape, tile);
    const std::int64_t columns = column_tiles(shape, tile);
    return {shape, tile, every_tile(heads * rows, columns), every_tile(heads * columns, rows)};
  }
  if (mask.form() == MaskForm::bits) return schedule_bits(mask.bits(), tile, executor);
  if (in_whole_blocks(mask, tile)) return schedule_intervals(mask, tile, executor);
  return schedule_bits(*to_bits(mask, executor), tile, executor);
}

}  // namespace flashmask
