// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/changed_tiles.h"
#include "flashmask/bit_mask.h"
#include "mask/cell_rows.h"

namespace flashmask {

/// One row of cells, filled one visible range at a time. Takes time for the cells touched, not for the whole row.
class CellRowBuilder {
 public:
  explicit CellRowBuilder(std::int64_t columns);

  /// Makes columns [begin, end), clipped to the mask, visible to row `row` of the cells, 0 … 63.
  void show(std::int64_t row, std::int64_t begin, std::int64_t end);
  void show(std::int64_t row, std::int64_t column) {
    words_[static_cast<std::size_t>(column / BitMask::kCell * BitMask::kCell + row)] |= 1ULL << column % BitMask::kCell;
    touched_.insert(static_cast<std::uint32_t>(column / BitMask::kCell));
  }
  /// Makes column `begin` + b visible to row `row` for every set bit b. These columns must lie inside the mask; `begin`
  /// need not.
  void show_bits(std::int64_t row, std::int64_t begin, std::uint64_t bits);

  /// Adds the cells shown, of which `rows` rows exist, to `out` and starts anew.
  void drain(std::int64_t rows, CellRows& out);

 private:
  void show_word(std::int64_t row, std::int64_t cell, std::uint64_t word);

  std::int64_t columns_;
  std::vector<std::uint64_t> words_;  ///< [cells][64]
  ChangedTiles touched_;
};

}  // namespace flashmask
