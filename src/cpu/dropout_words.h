// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "cpu/compiler.h"
#include "cpu/kernel_tasks.h"

namespace flashmask::cpu {

/// Draws which scores of a tile survive dropout, as dropout.h specifies. `Isa::Counters` are Philox counters in 64-bit
/// lanes. Only the low halves count: the next product does not read what the last one leaves in the high halves.
template <class Isa>
struct DropoutWords {
  /// word[r] bit c: the probability of row row0 + r, column column0 + c is kept. row0 and column0 are multiples of 8.
  static void row_words(const DropoutDraw& draw, std::int64_t row0, std::int64_t column0, std::uint64_t* word) {
    std::uint32_t counters[kCountersPerRow];
    find_eights(draw.column_eights, column0, counters);
    std::uint32_t row_eights[kWordBits / 8];
    find_eights(draw.row_eights, row0, row_eights);
    for (int r = 0; r < kWordBits; ++r) {
      word[r] = 0;
      const std::uint32_t row = row_eights[r / 8] * 8 + static_cast<std::uint32_t>(r) % 8;
      for (int part = 0; part < kCountersPerRow; part += Counters::lanes)
        word[r] |= kept(draw, row, counters + part) << (part * kColumnsPerCounter);
    }
  }

  /// Writes the decisions of row_words() by columns: word[c] bit r.
  static void column_words(const DropoutDraw& draw, std::int64_t row0, std::int64_t column0, std::uint64_t* word) {
    row_words(draw, row0, column0, word);
    transpose_cell(word);
  }

 private:
  using Counters = typename Isa::Counters;
  using Vec = typename Counters::Vec;
  static constexpr int kColumnsPerCounter = 8;
  static constexpr int kCountersPerRow = kWordBits / kColumnsPerCounter;

  /// Finds, for 64 rows or columns from `first` on, the number of each eight by which decisions are drawn.
  static FLASHMASK_INLINE void find_eights(const std::int32_t* eights, std::int64_t first, std::uint32_t* found) {
    for (std::int64_t i = 0; i < kWordBits / 8; ++i)
      found[i] = static_cast<std::uint32_t>(eights == nullptr ? first / 8 + i : eights[first / 8 + i]);
  }

  /// Philox 4×32-7 (Salmon et al. 2011): seven rounds of two wide products, for the counters that `counters` points to.
  static FLASHMASK_INLINE std::uint64_t kept(const DropoutDraw& draw, std::uint32_t row,
                                             const std::uint32_t* counters) {
    Vec x0 = Counters::load(counters);
    Vec x1 = Counters::broadcast(row);
    Vec x2 = Counters::broadcast(draw.head);
    Vec x3 = Counters::broadcast(draw.offset);
    std::uint32_t key0 = draw.key0, key1 = draw.key1;
    for (std::uint32_t round = 0; round < philox::kRounds; ++round) {
      const Vec a = Counters::multiply(x0, Counters::broadcast(philox::kFactor0));
      const Vec b = Counters::multiply(x2, Counters::broadcast(philox::kFactor2));
      x0 = Counters::xor_of(Counters::high_half(b), x1, Counters::broadcast(key0));
      x2 = Counters::xor_of(Counters::high_half(a), x3, Counters::broadcast(key1));
      x1 = b;
      x3 = a;
      key0 += philox::kKeyStep0;
      key1 += philox::kKeyStep1;
    }
    return Counters::at_least(x0, x1, x2, x3, draw.threshold);
  }
};

}  // namespace flashmask::cpu
