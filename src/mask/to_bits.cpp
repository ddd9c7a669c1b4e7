#include "mask/to_bits.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "flashmask/block_map.h"
#include "flashmask/schedule.h"
#include "mask/blocks.h"
#include "mask/cell_rows.h"

namespace flashmask {
namespace {

using CellWords = std::array<std::uint64_t, kCellSize>;

/// Copies the cells of a schedule of 64 × 64 tiles; the partial ones are read off the intervals.
std::shared_ptr<const BitMask> cells_of(const LoweredMask& lowered, Executor& executor) {
  const IntervalMask& mask = lowered.intervals();
  const MaskShape& shape = mask.shape();
  const TileSchedule tiles = schedule(lowered, {kCellSize, kCellSize}, Visit::active, executor);
  return std::make_shared<const BitMask>(build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      const IntervalColumns columns = interval_columns(mask, batch, head);
      const std::int64_t row0 = cell_row * kCellSize;
      CellWords words;
      for (const Run& run : tiles.row_runs(batch, head, cell_row)) {
        if (run.kind == TileKind::full) {
          out.add_full(run.begin, run.end);
          continue;
        }
        for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
          const std::int64_t column0 = std::int64_t{cell} * kCellSize;
          column_words(columns, row0, column0, shape.rows - row0, shape.columns - column0, words.data());
          transpose_cell(words.data());
          out.add_partial(cell, words.data());
        }
      }
    };
  }));
}

}  // namespace

IntervalColumns interval_columns(const IntervalMask& mask, std::int64_t batch, std::int64_t head) {
  const std::size_t first = mask.index(batch, head, 0);
  return {mask.first_begin() + first, mask.first_end() + first, mask.second_begin() + first, mask.second_end() + first};
}

std::shared_ptr<const BitMask> to_bits(const LoweredMask& mask, Executor& executor) {
  if (mask.form() == MaskForm::bits) return mask.shared_bits();
  const auto bits = cells_of({mask.shared_intervals(), mask.why()}, executor);
  if (mask.blocks() == nullptr) return bits;
  return std::make_shared<const BitMask>(keep_blocks(*bits, *mask.blocks(), executor));
}

}  // namespace flashmask
