// SPDX-License-Identifier: Apache-2.0
#include "schedule/visible_rows.h"

#include <algorithm>
#include <bit>

#include "mask/cell_reader.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// Calls body(column, row) for every set bit of 64 words that no earlier word has, in the given order of rows.
template <class Body>
void for_first_bits(const std::uint64_t* words, bool ascending, const Body& body) {
  std::uint64_t seen = 0;
  for (int i = 0; i < kCellSize; ++i) {
    const int row = ascending ? i : kCellSize - 1 - i;
    for (std::uint64_t fresh = words[row] & ~seen; fresh != 0; fresh &= fresh - 1) body(std::countr_zero(fresh), row);
    seen |= words[row];
  }
}

}  // namespace

void VisibleRows::add(const LoweredMask& mask, std::int64_t batch, Executor& executor) {
  const std::int64_t heads = mask.shape().heads;
  if (is_plain_intervals(mask)) {
    for (std::int64_t head = 0; head < heads; ++head) add_intervals(mask.intervals(), batch * heads + head);
    return;
  }
  const std::shared_ptr<const BitMask> bits = to_bits(mask, executor);
  for (std::int64_t head = 0; head < heads; ++head) add_bits(*bits, batch, head);
}

void VisibleRows::add_column(std::int64_t column, std::int64_t begin, std::int64_t end) {
  const auto i = static_cast<std::size_t>(column);
  begin_[i] = std::min(begin_[i], begin);
  end_[i] = std::max(end_[i], end);
}

void VisibleRows::add_intervals(const IntervalMask& mask, std::int64_t list) {
  const std::int64_t columns = mask.shape().columns;
  for (std::int64_t column = 0; column < columns; ++column) {
    const auto index = static_cast<std::size_t>(list * columns + column);
    const Interval first = mask.first(index), second = mask.second(index);
    const Interval last = second.empty() ? first : second;
    const std::int64_t begin = first.begin == 0 ? first.end : 0;
    const std::int64_t end = last.end == rows_ ? last.begin : rows_;
    if (begin < end) add_column(column, begin, end);
  }
}

void VisibleRows::add_bits(const BitMask& mask, std::int64_t batch, std::int64_t head) {
  const std::int64_t columns = mask.shape().columns;
  for (std::int64_t cell_row = 0; cell_row < mask.cell_rows(); ++cell_row) {
    const std::int64_t row0 = cell_row * kCellSize;
    for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) {
      if (run.kind == TileKind::full) {
        const std::int64_t end = std::min(std::int64_t{run.end} * kCellSize, columns);
        for (std::int64_t column = std::int64_t{run.begin} * kCellSize; column < end; ++column)
          add_column(column, row0, std::min(row0 + kCellSize, rows_));
      }
      for (std::int32_t cell = run.begin; run.kind == TileKind::partial && cell < run.end; ++cell) {
        const auto add = [&](int column, int row) {
          add_column(std::int64_t{cell} * kCellSize + column, row0 + row, row0 + row + 1);
        };
        for_first_bits(run.words_of(cell), true, add);
        for_first_bits(run.words_of(cell), false, add);
      }
    });
  }
}

std::vector<VisibleRows::Sides> VisibleRows::cuts() const {
  std::vector<Sides> sides(begin_.size() + 1, {0, rows_});
  for (std::size_t i = 0; i < end_.size(); ++i) sides[i + 1].above = std::max(sides[i].above, end_[i]);
  for (std::size_t i = begin_.size(); i-- > 0;) sides[i].below = std::min(sides[i + 1].below, begin_[i]);
  return sides;
}

}  // namespace flashmask
