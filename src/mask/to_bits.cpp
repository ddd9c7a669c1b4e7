// SPDX-License-Identifier: Apache-2.0
#include "mask/to_bits.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/tile_shape.h"
#include "base/transposed_runs.h"
#include "flashmask/block_map.h"
#include "mask/blocks.h"
#include "mask/cell_rows.h"
#include "mask/column_runs.h"

namespace flashmask {
namespace {

using CellWords = std::array<std::uint64_t, kCellSize>;

/// Returns the runs of full and of partial cells in each row of cells: tiles of 64 × 64 scores.
RunLists cells_by_rows(const IntervalMask& mask, Executor& executor) {
  constexpr TileShape kCell{kCellSize, kCellSize};
  const MaskShape& shape = mask.shape();
  const ListGrid columns{column_tiles(shape, kCell), row_tiles(shape, kCell)};
  return transposed_runs(column_runs(mask, kCell, executor), columns, shape.batch * shape.heads, executor);
}

/// Builds the bits of intervals; only the partial cells need words.
std::shared_ptr<const BitMask> cells_of(const IntervalMask& mask, Executor& executor) {
  const MaskShape& shape = mask.shape();
  const RunLists cells = cells_by_rows(mask, executor);
  const std::int64_t cell_rows = row_tiles(shape, {kCellSize, kCellSize});
  return std::make_shared<const BitMask>(build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      const IntervalColumns columns = interval_columns(mask, batch, head);
      const std::int64_t row0 = cell_row * kCellSize;
      CellWords words;
      for (const Run& run : cells.list((batch * shape.heads + head) * cell_rows + cell_row)) {
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
  const auto bits = cells_of(mask.intervals(), executor);
  if (mask.blocks() == nullptr) return bits;
  return std::make_shared<const BitMask>(keep_blocks(*bits, *mask.blocks(), executor));
}

}  // namespace flashmask
