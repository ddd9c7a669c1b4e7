#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

namespace flashmask::cpu {

/// Where a tile lies and how much of it exists.
struct TileBounds {
  std::int64_t row0;
  std::int64_t column0;
  int rows;
  int columns;
};

/// One word a line that says which scores of a tile are visible.
template <int Lines>
struct TileBits {
  std::uint64_t word[Lines];
};

FLASHMASK_INLINE std::uint64_t low_bits(int count) {
  return count >= kWordBits ? ~0ull : (count <= 0 ? 0 : (1ull << count) - 1);
}

/// Rows and columns of 64 × 64 bits swapped: halves of 32, 16, … 1 trade places.
template <class Isa>
FLASHMASK_INLINE void transpose_bits(std::uint64_t* word) {
  std::uint64_t keep = 0x00000000ffffffffull;
  for (int half = 32; half != 0; half >>= 1, keep ^= keep << half) {
    for (int base = 0; base < kWordBits; base += 2 * half) {
      for (int i = base; i < base + half; ++i) {
        const std::uint64_t swap = (word[i] >> half ^ word[i + half]) & keep;
        word[i] ^= swap << half;
        word[i + half] ^= swap;
      }
    }
  }
}

/// Reads a partial tile of an IntervalMask. A predicate gives 64 × 64 scores as words, either way round; kernels know
/// no more of a mask than that.
template <class Isa>
struct IntervalsPredicate {
  /// word[c] bit r: row r sees column c. Rows and columns past the bounds are masked.
  static FLASHMASK_INLINE void column_words(const IntervalColumns& mask, const TileBounds& tile, std::uint64_t* word) {
    const std::uint64_t rows = low_bits(tile.rows);
    const int columns = tile.columns < kWordBits ? tile.columns : kWordBits;
    for (int c = 0; c < columns; ++c) {
      const std::int64_t column = tile.column0 + c;
      const std::uint64_t masked = range_word(mask.first_begin[column], mask.first_end[column], tile.row0) |
                                   range_word(mask.second_begin[column], mask.second_end[column], tile.row0);
      word[c] = rows & ~masked;
    }
    for (int c = columns > 0 ? columns : 0; c < kWordBits; ++c) word[c] = 0;
  }

  /// word[r] bit c: row r sees column c.
  static FLASHMASK_INLINE void row_words(const IntervalColumns& mask, const TileBounds& tile, std::uint64_t* word) {
    column_words(mask, tile, word);
    transpose_bits<Isa>(word);
  }

 private:
  static FLASHMASK_INLINE int clamp_to_tile(std::int64_t row) {
    return static_cast<int>(row < 0 ? 0 : (row > kWordBits ? kWordBits : row));
  }
  /// Bits of the rows [begin, end) that fall into the tile.
  static FLASHMASK_INLINE std::uint64_t range_word(std::int64_t begin, std::int64_t end, std::int64_t row0) {
    return low_bits(clamp_to_tile(end - row0)) & ~low_bits(clamp_to_tile(begin - row0));
  }
};

}  // namespace flashmask::cpu
