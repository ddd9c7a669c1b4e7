// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <vector>

#include "base/checks.h"
#include "flashmask/mask.h"
#include "mask/cell_row_builder.h"
#include "mask/cell_words.h"
#include "mask/csr.h"

namespace flashmask {
namespace {

void check_lengths(const std::string& function, std::int64_t rows, std::int64_t columns) {
  check_size(function, "rows", rows);
  check_size(function, "columns", columns);
}

/// Builds a mask whose row i sees columns[offsets[i]] … columns[offsets[i + 1]), all within the mask.
BitMask from_lists(const MaskShape& shape, std::span<const std::int64_t> offsets, std::span<const std::int64_t> columns,
                   Executor& executor) {
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<CellRowBuilder>(shape.columns)](std::int64_t, std::int64_t,
                                                                        std::int64_t cell_row, CellRows& out) {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto row = static_cast<std::size_t>(row0 + r);
        for (auto i = offsets[row]; i < offsets[row + 1]; ++i) cells->show(r, columns[static_cast<std::size_t>(i)]);
      }
      cells->drain(rows, out);
    };
  });
}

void check_pair(std::size_t i, const VisiblePair& pair, std::int64_t rows, std::int64_t columns) {
  if (pair.row >= 0 && pair.row < rows && pair.column >= 0 && pair.column < columns) return;
  refuse("from_pairs: pairs[" + std::to_string(i) + "] is (row " + grouped(pair.row) + ", column " +
         grouped(pair.column) + ") but the mask has " + grouped(rows) + " rows and " + grouped(columns) +
         " columns; both count from 0");
}

}  // namespace

Mask from_pairs(std::int64_t rows, std::int64_t columns, std::span<const VisiblePair> pairs, Executor& executor) {
  check_lengths("from_pairs", rows, columns);
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(rows) + 2);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    check_pair(i, pairs[i], rows, columns);
    ++offsets[static_cast<std::size_t>(pairs[i].row) + 2];
  }
  for (std::size_t i = 2; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
  std::vector<std::int64_t> sorted(pairs.size());
  for (const VisiblePair& pair : pairs) {
    sorted[static_cast<std::size_t>(offsets[static_cast<std::size_t>(pair.row) + 1]++)] = pair.column;
  }
  const MaskShape shape{.batch = 1, .heads = 1, .rows = rows, .columns = columns};
  const auto row_offsets = std::span<const std::int64_t>(offsets).first(static_cast<std::size_t>(rows) + 1);
  return {from_lists(shape, row_offsets, sorted, executor), "from_pairs(" + counted(pairs.size(), "pair") + ")"};
}

Mask from_csr(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> offsets,
              std::span<const std::int64_t> column_indices, Executor& executor) {
  check_lengths("from_csr", rows, columns);
  check_csr("from_csr", {rows, columns}, offsets, column_indices);
  const MaskShape shape{.batch = 1, .heads = 1, .rows = rows, .columns = columns};
  return {from_lists(shape, offsets, column_indices, executor),
          "from_csr(" + counted(column_indices.size(), "pair") + ")"};
}

}  // namespace flashmask
