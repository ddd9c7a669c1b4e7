// SPDX-License-Identifier: Apache-2.0
#include "mask/cell_rows.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/bodies.h"
#include "base/checks.h"
#include "base/joined_lists.h"
#include "base/piece_count.h"
#include "mask/cell_words.h"

namespace flashmask {
namespace {

BitMask join(const MaskShape& shape, std::vector<CellRows>& pieces) {
  std::vector<RunLists> lists;
  std::size_t count = 0;
  for (CellRows& piece : pieces) {
    lists.push_back(piece.take_cells());
    count += piece.words().size();
  }
  std::vector<std::uint64_t> words;
  words.reserve(count);
  for (CellRows& piece : pieces) {
    const std::vector<std::uint64_t> own = piece.take_words();
    words.insert(words.end(), own.begin(), own.end());
  }
  return {shape, joined(lists), std::move(words)};
}

}  // namespace

void CellRows::add_partial(std::int32_t column, const std::uint64_t* words) {
  cells_.add({column, column + 1, TileKind::partial});
  words_.insert(words_.end(), words, words + kCellSize);
}

void CellRows::add(std::int32_t column, const std::uint64_t* words, std::int64_t rows, std::int64_t columns) {
  std::uint64_t any = 0;
  std::uint64_t all = low_bits(columns);
  for (std::int64_t r = 0; r < std::min<std::int64_t>(rows, kCellSize); ++r) {
    any |= words[r];
    all &= words[r];
  }
  if (any == 0) return;
  if (all == low_bits(columns)) {
    add_full(column, column + 1);
  } else {
    add_partial(column, words);
  }
}

void CellRows::copy(const CellRun& from, std::int32_t begin, std::int32_t end) {
  if (from.kind == TileKind::full) add_full(begin, end);
  for (std::int32_t cell = begin; from.kind == TileKind::partial && cell < end; ++cell)
    add_partial(cell, from.words_of(cell));
}

BitMask build_bits(const MaskShape& shape, Executor& executor, const std::function<FillCells()>& make_fill) try {
  const std::int64_t per_head = (shape.rows + kCellSize - 1) / kCellSize;
  const std::int64_t rows = shape.batch * shape.heads * per_head;
  const std::int64_t number = piece_count(executor, rows);
  std::vector<CellRows> pieces(static_cast<std::size_t>(number));
  run_bodies(executor, static_cast<int>(number), [&](int i) {
    CellRows& piece = pieces[static_cast<std::size_t>(i)];
    const FillCells fill = make_fill();
    for (std::int64_t row = rows * i / number; row < rows * (i + 1) / number; ++row) {
      fill(row / per_head / shape.heads, row / per_head % shape.heads, row % per_head, piece);
      piece.end_row();
    }
  });
  return number == 1 ? BitMask(shape, pieces[0].take_cells(), pieces[0].take_words()) : join(shape, pieces);
} catch (const std::bad_alloc&) {
  const std::int64_t bytes_of_row = (shape.columns + 7) / 8;
  refuse_memory("a mask as bits, where every cell is partial",
                element_count("BitMask", {shape.batch, shape.heads, shape.rows, bytes_of_row}));
}

}  // namespace flashmask
