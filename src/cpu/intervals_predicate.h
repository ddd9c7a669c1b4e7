#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

namespace flashmask::cpu {

/// Where a tile lies and how much of it exists.
struct TileBounds {
  std::int64_t row0;
  std::int64_t column0;
  int rows;     ///< 1 … 64
  int columns;  ///< 1 … 64
};

/// 64 words that say which scores of a tile are visible.
struct TileBits {
  std::uint64_t word[kTile];
};

FLASHMASK_INLINE std::uint64_t low_bits(int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

/// Rows and columns of the bits swapped: halves of 32, 16, … 1 trade places.
template <class Isa>
FLASHMASK_INLINE void transpose_bits(TileBits& bits) {
  std::uint64_t keep = 0x00000000ffffffffull;
  for (int half = 32; half != 0; half >>= 1, keep ^= keep << half) {
    for (int base = 0; base < kTile; base += 2 * half) {
      for (int i = base; i < base + half; ++i) {
        const std::uint64_t swap = (bits.word[i] >> half ^ bits.word[i + half]) & keep;
        bits.word[i] ^= swap << half;
        bits.word[i + half] ^= swap;
      }
    }
  }
}

/// Reads a partial tile of an IntervalMask. A predicate gives the bits of a tile either way round; kernels know no more
/// of a mask than that.
template <class Isa>
struct IntervalsPredicate {
  /// word[c] bit r: row r sees column c. Rows and columns that do not exist are masked.
  static FLASHMASK_INLINE void column_words(const IntervalColumns& mask, const TileBounds& tile, TileBits& bits) {
    const std::uint64_t rows = low_bits(tile.rows);
    for (int c = 0; c < tile.columns; ++c) {
      const std::int64_t column = tile.column0 + c;
      const std::uint64_t masked = range_word(mask.first_begin[column], mask.first_end[column], tile.row0) |
                                   range_word(mask.second_begin[column], mask.second_end[column], tile.row0);
      bits.word[c] = rows & ~masked;
    }
    for (int c = tile.columns; c < kTile; ++c) bits.word[c] = 0;
  }

  /// word[r] bit c: row r sees column c.
  static FLASHMASK_INLINE void row_words(const IntervalColumns& mask, const TileBounds& tile, TileBits& bits) {
    column_words(mask, tile, bits);
    transpose_bits<Isa>(bits);
  }

 private:
  static FLASHMASK_INLINE int clamp_to_tile(std::int64_t row) {
    return static_cast<int>(row < 0 ? 0 : (row > kTile ? kTile : row));
  }
  /// Bits of the rows [begin, end) that fall into the tile.
  static FLASHMASK_INLINE std::uint64_t range_word(std::int64_t begin, std::int64_t end, std::int64_t row0) {
    return low_bits(clamp_to_tile(end - row0)) & ~low_bits(clamp_to_tile(begin - row0));
  }
};

}  // namespace flashmask::cpu
