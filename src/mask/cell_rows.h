// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/run_builder.h"
#include "flashmask/bit_mask.h"
#include "flashmask/executor.h"
#include "mask/cell_reader.h"

namespace flashmask {

/// Rows of cells of a BitMask under construction. Cells are added in ascending order; cells never added are skipped.
class CellRows {
 public:
  void add_full(std::int32_t begin, std::int32_t end) {
    if (begin < end) cells_.add({begin, end, TileKind::full});
  }
  /// Adds a partial cell: 64 words, in which some but not all scores are visible.
  void add_partial(std::int32_t column, const std::uint64_t* words);
  /// Adds a cell of the kind that its words make it; only its first `rows` rows and `columns` columns exist.
  void add(std::int32_t column, const std::uint64_t* words, std::int64_t rows, std::int64_t columns);
  /// Adds cells [begin, end) of a run unchanged.
  void copy(const CellRun& from, std::int32_t begin, std::int32_t end);
  void end_row() { cells_.end_list(); }

  const RunLists& cells() const { return cells_.lists(); }
  const std::vector<std::uint64_t>& words() const { return words_; }
  RunLists take_cells() { return cells_.take(); }
  std::vector<std::uint64_t> take_words() { return std::move(words_); }

 private:
  RunBuilder cells_;
  std::vector<std::uint64_t> words_;
};

/// Adds the cells of one row, without ending the row.
using FillCells = std::function<void(std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out)>;

/// Builds a BitMask from consecutive pieces of its rows of cells, in parallel. Calls make_fill() once per piece, so a
/// fill may keep memory from row to row.
BitMask build_bits(const MaskShape& shape, Executor& executor, const std::function<FillCells()>& make_fill);

}  // namespace flashmask
