// SPDX-License-Identifier: Apache-2.0
#include "mask/cell_row_builder.h"

#include <algorithm>

#include "mask/cell_words.h"

namespace flashmask {

CellRowBuilder::CellRowBuilder(std::int64_t columns)
    : columns_(columns),
      words_(static_cast<std::size_t>((columns + kCellSize - 1) / kCellSize * kCellSize)),
      touched_((columns + kCellSize - 1) / kCellSize) {}

void CellRowBuilder::show(std::int64_t row, std::int64_t begin, std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0);
  end = std::min(end, columns_);
  if (begin >= end) return;
  for (std::int64_t cell = begin / kCellSize; cell * kCellSize < end; ++cell) {
    show_word(row, cell, range_bits(begin - cell * kCellSize, end - cell * kCellSize));
  }
}

void CellRowBuilder::show_bits(std::int64_t row, std::int64_t begin, std::uint64_t bits) {
  if (begin < 0) {
    bits >>= -begin;
    begin = 0;
  }
  const std::int64_t shift = begin % kCellSize;
  show_word(row, begin / kCellSize, bits << shift);
  if (shift != 0) show_word(row, begin / kCellSize + 1, bits >> (kCellSize - shift));
}

void CellRowBuilder::show_word(std::int64_t row, std::int64_t cell, std::uint64_t word) {
  if (word == 0) return;
  words_[static_cast<std::size_t>(cell * kCellSize + row)] |= word;
  touched_.insert(static_cast<std::uint32_t>(cell));
}

void CellRowBuilder::drain(std::int64_t rows, CellRows& out) {
  touched_.drain([&](std::size_t cell) {
    std::uint64_t* words = words_.data() + cell * kCellSize;
    const auto column = static_cast<std::int32_t>(cell);
    out.add(column, words, rows, columns_ - std::int64_t{column} * kCellSize);
    std::fill_n(words, kCellSize, 0);
  });
}

}  // namespace flashmask
