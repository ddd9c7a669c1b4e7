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

/// Rows of cells of a BitMask in the making. Cells are added in ascending order; those left out are skipped.
class CellRows {
 public:
  void add_full(std::int32_t begin, std::int32_t end) {
    if (begin < end) cells_.add({begin, end, TileKind::full});
  }
  /// 64 words, of which some but not all are visible.
  void add_partial(std::int32_t column, const std::uint64_t* words);
  /// Of whatever kind its words make it: `rows` and `columns` of its scores exist.
  void add(std::int32_t column, const std::uint64_t* words, std::int64_t rows, std::int64_t columns);
  /// Cells [begin, end) of a run, as they are.
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

/// Adds one row of cells, without ending it.
using FillCells = std::function<void(std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out)>;

/// Rows of cells are shared out in consecutive pieces; every piece makes a fill of its own, which may keep memory from
/// row to row.
BitMask build_bits(const MaskShape& shape, Executor& executor, const std::function<FillCells()>& make_fill);

}  // namespace flashmask
