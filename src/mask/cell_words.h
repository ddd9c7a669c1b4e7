// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Words that say which scores of a cell of 64 × 64 are visible. Files compiled for other instruction sets include
/// this, so no function here may be emitted out of line.
namespace flashmask {

inline constexpr int kCellSize = 64;

/// The interval mask of one batch entry and mask head: four arrays with one value per key column.
struct IntervalColumns {
  const std::int32_t* first_begin;
  const std::int32_t* first_end;
  const std::int32_t* second_begin;
  const std::int32_t* second_end;
};

/// Returns bits [0, count): all of them if count >= 64, none if count <= 0.
[[gnu::always_inline]] inline std::uint64_t low_bits(std::int64_t count) {
  return count >= kCellSize ? ~0ULL : (count <= 0 ? 0 : (1ULL << count) - 1);
}

/// Returns bits [begin, end).
[[gnu::always_inline]] inline std::uint64_t range_bits(std::int64_t begin, std::int64_t end) {
  return low_bits(end) & ~low_bits(begin);
}

/// Transposes 64 × 64 bits, by swapping off-diagonal blocks of 32, 16, … 1 rows and columns.
[[gnu::always_inline]] inline void transpose_cell(std::uint64_t* word) {
  std::uint64_t keep = 0x00000000ffffffffull;
  for (int half = kCellSize / 2; half != 0; half >>= 1, keep ^= keep << half) {
    for (int base = 0; base < kCellSize; base += 2 * half) {
      for (int i = base; i < base + half; ++i) {
        const std::uint64_t swap = (word[i] >> half ^ word[i + half]) & keep;
        word[i] ^= swap << half;
        word[i + half] ^= swap;
      }
    }
  }
}

/// Sets bit r of word[c] if row row0 + r sees column column0 + c. Masks rows and columns past the given numbers.
[[gnu::always_inline]] inline void column_words(const IntervalColumns& mask, std::int64_t row0, std::int64_t column0,
                                                std::int64_t rows, std::int64_t columns, std::uint64_t* word) {
  const std::uint64_t present = low_bits(rows);
  for (int c = 0; c < kCellSize; ++c) {
    if (c >= columns) {
      word[c] = 0;
      continue;
    }
    const std::int64_t column = column0 + c;
    const std::uint64_t masked = range_bits(mask.first_begin[column] - row0, mask.first_end[column] - row0) |
                                 range_bits(mask.second_begin[column] - row0, mask.second_end[column] - row0);
    word[c] = present & ~masked;
  }
}

}  // namespace flashmask
