// SPDX-License-Identifier: Apache-2.0
#include "flashmask/binary_block_matrix.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/checks.h"

namespace flashmask {
namespace {

void check_index(const std::string& argument, std::int64_t value, std::int64_t size) {
  if (value < 0 || value >= size) {
    refuse("binary_block_matrix: " + argument + " is " + grouped(value) + "; the mask of the schedule has " +
           grouped(size) + ", counted from 0");
  }
}

/// Returns the first full tiles without a gap; empty if there are none.
Run first_full(std::span<const Run> runs) {
  const auto is_full = [](const Run& run) { return run.kind == TileKind::full; };
  auto run = std::find_if(runs.begin(), runs.end(), is_full);
  if (run == runs.end()) return {};
  Run ones = *run;
  for (++run; run != runs.end() && is_full(*run) && run->begin == ones.end; ++run) ones.end = run->end;
  return ones;
}

}  // namespace

BinaryBlockMatrix binary_block_matrix(const TileSchedule& schedule, std::int64_t batch, std::int64_t head,
                                      Direction direction) {
  check_index("batch", batch, schedule.mask_shape().batch);
  check_index("head", head, schedule.mask_shape().heads);
  const bool by_rows = direction == Direction::forward;
  BinaryBlockMatrix matrix;
  matrix.rows = by_rows ? schedule.row_tiles() : schedule.column_tiles();
  matrix.columns = by_rows ? schedule.column_tiles() : schedule.row_tiles();
  matrix.blocks.resize(static_cast<std::size_t>(matrix.rows * matrix.columns));
  matrix.total_ones.resize(static_cast<std::size_t>(matrix.rows));
  matrix.offset.resize(static_cast<std::size_t>(matrix.rows));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    const std::span<const Run> runs =
        by_rows ? schedule.row_runs(batch, head, i) : schedule.column_runs(batch, head, i);
    for (const Run& run : runs) {
      std::fill_n(matrix.blocks.begin() + i * matrix.columns + run.begin, run.end - run.begin, std::uint8_t{1});
    }
    const Run ones = first_full(runs);
    matrix.offset[static_cast<std::size_t>(i)] = ones.begin;
    matrix.total_ones[static_cast<std::size_t>(i)] = ones.end - ones.begin;
  }
  return matrix;
}

}  // namespace flashmask
