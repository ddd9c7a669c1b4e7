// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "mask/builders/visible_columns.h"
#include "mask/cell_reader.h"
#include "mask/cell_rows.h"
#include "mask/to_bits.h"

namespace flashmask::masks {
namespace {

using CellWords = std::array<std::uint64_t, kCellSize>;

/// Returns, for one row of cells, all bits for each row that is kept and none for each dropped row.
CellWords row_words(const std::vector<std::uint8_t>& is_dropped, std::int64_t row0, std::int64_t rows) {
  CellWords kept{};
  for (std::int64_t r = 0; r < rows; ++r) {
    kept[static_cast<std::size_t>(r)] = is_dropped[static_cast<std::size_t>(row0 + r)] == 0 ? ~0ULL : 0;
  }
  return kept;
}

/// Adds the cells of a run with the dropped rows masked.
void keep_rows(const CellRun& run, const CellWords& kept, const MaskShape& shape, std::int64_t rows, CellRows& out) {
  for (std::int32_t cell = run.begin; run.kind != TileKind::skip && cell < run.end; ++cell) {
    const std::int64_t columns = shape.columns - std::int64_t{cell} * kCellSize;
    CellWords words = kept;
    for (std::size_t r = 0; r < kCellSize; ++r) {
      words[r] &= run.kind == TileKind::full ? low_bits(columns) : run.words_of(cell)[r];
    }
    out.add(cell, words.data(), rows, columns);
  }
}

}  // namespace

Mask drop_queries(const Mask& mask, Elements<std::int64_t> rows) {
  const MaskShape& shape = mask.shape();
  check_positions("drop_queries", "rows", rows, "row", shape.rows);
  std::vector<std::uint8_t> is_dropped(static_cast<std::size_t>(shape.rows));
  for (const std::int64_t row : rows) is_dropped[static_cast<std::size_t>(row)] = 1;
  Executor& executor = default_executor();
  const auto bits = to_bits(mask.lowered(), executor);
  const auto fill = [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
    const std::int64_t row0 = cell_row * kCellSize;
    const std::int64_t count = std::min<std::int64_t>(kCellSize, shape.rows - row0);
    const CellWords kept = row_words(is_dropped, row0, count);
    for_each_cell_run(*bits, batch, head, cell_row,
                      [&](const CellRun& run) { keep_rows(run, kept, shape, count, out); });
  };
  return {build_bits(shape, executor, [&]() -> FillCells { return fill; }),
          "drop_queries(" + mask.description() + ", " + counted(rows.size(), "row") + ")"};
}

}  // namespace flashmask::masks
