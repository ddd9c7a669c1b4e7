// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/compiler.h"
#include "cpu/kernel_tasks.h"

namespace flashmask::cpu {

/// Reads a partial tile of an IntervalMask. A predicate gives the mask of 64 × 64 scores as words, by columns or by
/// rows; that is all that kernels know of a mask.
template <class Isa>
struct IntervalsPredicate {
  /// word[c] bit r: row r sees column c. Rows and columns past the bounds are masked.
  static void column_words(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word) {
    const bool kept = tile.rows > 0 && tile.columns > 0 && mask.blocks.keeps(tile.row0, tile.column0);
    flashmask::column_words(mask.intervals, tile.row0, tile.column0, tile.rows, kept ? tile.columns : 0, word);
  }

  /// word[r] bit c: row r sees column c.
  static void row_words(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word) {
    column_words(mask, tile, word);
    transpose_cell(word);
  }
};

/// Reads a cell of a BitMask.
template <class Isa>
struct BitsPredicate {
  static void column_words(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word) {
    row_words(mask, tile, word);
    transpose_cell(word);
  }

  static void row_words(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word) {
    const bool exists = tile.rows > 0 && tile.columns > 0;
    const Cell cell = exists ? find(mask.cells, tile.row0 / kWordBits, tile.column0 / kWordBits) : Cell{};
    if (cell.words != nullptr) {
      for (int r = 0; r < kWordBits; ++r) word[r] = cell.words[r];
      return;
    }
    const std::uint64_t visible = cell.full ? low_bits(tile.columns) : 0;
    for (int r = 0; r < kWordBits; ++r) word[r] = r < tile.rows ? visible : 0;
  }

 private:
  struct Cell {
    bool full = false;
    const std::uint64_t* words = nullptr;  ///< of a partial cell
  };

  /// Finds a cell in a row of cells, by bisection of the row's runs.
  static FLASHMASK_INLINE Cell find(const HeadCells& cells, std::int64_t cell_row, std::int64_t cell_column) {
    const std::int64_t end = cells.offsets[cell_row + 1];
    std::int64_t low = cells.offsets[cell_row];
    for (std::int64_t high = end; low < high;) {
      const std::int64_t middle = (low + high) / 2;
      if (cells.runs[middle].end <= cell_column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == end || cells.runs[low].begin > cell_column) return {};
    const Run& run = cells.runs[low];
    if (run.kind == TileKind::full) return {true, nullptr};
    return {false, cells.words + (cells.first_cells[low] + cell_column - run.begin) * kWordBits};
  }
};

template <template <class> class Predicate, class Isa>
constexpr PredicateCode predicate_code() {
  return {Predicate<Isa>::column_words, Predicate<Isa>::row_words};
}

}  // namespace flashmask::cpu
