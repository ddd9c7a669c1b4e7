// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/compiler.h"
#include "cpu/kernel_tasks.h"

namespace flashmask::cpu {

/// Words of eight columns of an IntervalMask side by side, in the compilers' vector types.
struct ColumnsAtOnce {
  static constexpr int count = 8;
  using Rows [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = std::int32_t;
  using Words [[gnu::vector_size(64), gnu::aligned(8), gnu::may_alias]] = std::uint64_t;

  /// Sets bits [begin - row0, end - row0) of each column's word.
  static FLASHMASK_INLINE void set_range(const std::int32_t* begin, const std::int32_t* end, std::int32_t row0,
                                         Words& words) {
    const auto set_low_bits = [&](const std::int32_t* rows, Words& low) FLASHMASK_INLINE_LAMBDA {
      const Rows bits = *reinterpret_cast<const Rows*>(rows) - row0;
      const Rows least = bits & (bits > 0);
      const Rows inside = (least & (least < kWordBits)) | (kWordBits & (least >= kWordBits));
      const Words shift = __builtin_convertvector(inside, Words), half = shift >> 1;
      low = (((Words{} + 1) << half) << (shift - half)) - 1;  // in two shifts, as one by 64 is undefined
    };
    Words below_begin, below_end;
    set_low_bits(begin, below_begin);
    set_low_bits(end, below_end);
    words = below_end & ~below_begin;
  }

  /// Sets bit r of word[c] if row row0 + r sees column column0 + c, for a cell whose 64 columns all exist.
  static FLASHMASK_INLINE void column_words(const IntervalColumns& mask, const TileBounds& tile, std::uint64_t* word) {
    const auto row0 = static_cast<std::int32_t>(tile.row0);
    for (int c = 0; c < kWordBits; c += count) {
      const std::int64_t column = tile.column0 + c;
      Words first, second;
      set_range(mask.first_begin + column, mask.first_end + column, row0, first);
      set_range(mask.second_begin + column, mask.second_end + column, row0, second);
      *reinterpret_cast<Words*>(word + c) = low_bits(tile.rows) & ~(first | second);
    }
  }
};

/// Reads a partial tile of an IntervalMask. A predicate gives the mask of 64 × 64 scores as words, by columns or by
/// rows; that is all that kernels know of a mask.
template <class Isa>
struct IntervalsPredicate {
  /// word[c] bit r: row r sees column c. Rows and columns past the bounds are masked.
  static void column_words(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word) {
    const bool kept = tile.rows > 0 && tile.columns > 0 && mask.blocks.keeps(tile.row0, tile.column0);
    if (kept && tile.columns >= kWordBits) {
      ColumnsAtOnce::column_words(mask.intervals, tile, word);
      return;
    }
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
