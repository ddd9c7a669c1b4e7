// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "flashmask/bit_mask.h"
#include "mask/cell_words.h"

namespace flashmask {

/// Calls visit(cell, word) for each word of one row that is not 0, in ascending order.
template <class Visit>
void for_each_word(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t row, const Visit& visit) {
  const std::int64_t list = mask.list(batch, head, row / kCellSize);
  for (std::int64_t position = mask.cells().begin(list); position < mask.cells().end(list); ++position) {
    const Run& run = mask.cells().run(position);
    if (run.kind == TileKind::full) {
      for (std::int64_t cell = run.begin; cell < run.end; ++cell)
        visit(cell, low_bits(mask.shape().columns - cell * kCellSize));
      continue;
    }
    const std::uint64_t* words = mask.words(position) + row % kCellSize;
    for (std::int64_t cell = run.begin; cell < run.end; ++cell, words += kCellSize) {
      if (*words != 0) visit(cell, *words);
    }
  }
}

/// Calls visit(column) for each bit of a word.
template <class Visit>
void for_each_column(std::int64_t cell, std::uint64_t word, const Visit& visit) {
  for (; word != 0; word &= word - 1) visit(cell * kCellSize + std::countr_zero(word));
}

}  // namespace flashmask
