// SPDX-License-Identifier: Apache-2.0
#include "mask/moved_mask.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "mask/cell_reader.h"
#include "mask/cell_row_builder.h"
#include "mask/cell_rows.h"

namespace flashmask {
namespace {

/// Returns [tokens + 1]: the new number of each row, or of the next kept one; `end` past the last.
std::vector<std::int32_t> row_numbers(const ChosenTokens& rows, std::int64_t tokens, std::int64_t end) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(tokens) + 1, static_cast<std::int32_t>(end));
  std::int64_t token = 0;
  for (std::int64_t i = 0; i < rows.spans(); ++i) {
    auto number = static_cast<std::int32_t>(rows.first(i));
    for (; token < rows.span(i).begin; ++token) numbers[static_cast<std::size_t>(token)] = number;
    for (; token < rows.span(i).end; ++token) numbers[static_cast<std::size_t>(token)] = number++;
  }
  return numbers;
}

/// Moves the columns of one list.
class ColumnMover {
 public:
  ColumnMover(const IntervalMask& mask, IntervalMask& out, std::int64_t batch, std::int64_t head,
              const std::vector<std::int32_t>& rows)
      : mask_(mask), out_(out), batch_(batch), head_(head), rows_(rows) {}

  void move(const ChosenTokens& columns) {
    for (std::int64_t i = 0; i < columns.spans(); ++i) {
      hide_until(columns.first(i));
      std::size_t source = mask_.index(batch_, head_, columns.span(i).begin);
      std::size_t target = out_.index(batch_, head_, columns.first(i));
      for (; next_ < columns.last(i); ++next_, ++source, ++target)
        out_.set(target, moved(mask_.first(source)), moved(mask_.second(source)));
    }
    hide_until(out_.shape().columns);
  }

 private:
  void hide_until(std::int64_t end) {
    const Interval all{0, static_cast<std::int32_t>(out_.shape().rows)};
    for (; next_ < end; ++next_) out_.set(out_.index(batch_, head_, next_), all, {});
  }

  Interval moved(Interval range) const {
    return {rows_[static_cast<std::size_t>(range.begin)], rows_[static_cast<std::size_t>(range.end)]};
  }

  const IntervalMask& mask_;
  IntervalMask& out_;
  std::int64_t batch_, head_;
  const std::vector<std::int32_t>& rows_;
  std::int64_t next_ = 0;  ///< the next column of the moved mask
};

/// Consecutive rows of one row of cells: `count` of them, starting at its row `row`.
struct CellRowPart {
  std::int64_t cell_row;
  std::int64_t row;
  std::int64_t count;
};

/// Returns the longest part, of at most `most` rows, whose first row has the new number `number`; in padding, an empty
/// one.
CellRowPart part_from(const ChosenTokens& rows, std::int64_t number, std::int64_t most) {
  const std::int64_t i = rows.span_of(number);
  if (i < 0 || number >= rows.last(i)) return {0, 0, 0};
  const std::int64_t row = rows.span(i).begin + number - rows.first(i);
  const std::int64_t in_cell = row % kCellSize;
  return {row / kCellSize, in_cell, std::min({most, kCellSize - in_cell, rows.span(i).end - row})};
}

/// Copies what the part's rows see of a run to rows `to`, `to` + 1, … of `out`, for the columns in `span`; the first
/// column of the span becomes column `first`.
void show_run(const CellRun& run, const CellRowPart& part, const Span& span, std::int64_t first, std::int64_t to,
              CellRowBuilder& out) {
  const auto column = [&](std::int64_t source) {
    return std::clamp(source, span.begin, span.end) - span.begin + first;
  };
  if (run.kind == TileKind::full) {
    const std::int64_t begin = column(std::int64_t{run.begin} * kCellSize);
    const std::int64_t end = column(std::int64_t{run.end} * kCellSize);
    for (std::int64_t r = 0; r < part.count; ++r) out.show(to + r, begin, end);
    return;
  }
  for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
    const std::int64_t column0 = std::int64_t{cell} * kCellSize;
    const std::uint64_t inside = range_bits(span.begin - column0, span.end - column0);
    for (std::int64_t r = 0; r < part.count; ++r) {
      const std::uint64_t word = run.words_of(cell)[part.row + r] & inside;
      out.show_bits(to + r, column0 - span.begin + first, word);
    }
  }
}

void show_part(const BitMask& mask, std::int64_t batch, std::int64_t head, const CellRowPart& part,
               const ChosenTokens& columns, std::int64_t to, CellRowBuilder& out) {
  for (std::int64_t i = 0; i < columns.spans(); ++i) {
    const Span& span = columns.span(i);
    CellReader cells(mask, batch, head, part.cell_row);
    const auto end = static_cast<std::int32_t>((span.end + kCellSize - 1) / kCellSize);
    for (auto cell = static_cast<std::int32_t>(span.begin / kCellSize); cell < end;) {
      CellRun run = cells.at(cell);
      cell = run.end = std::min(run.end, end);
      if (run.kind != TileKind::skip) show_run(run, part, span, columns.first(i), to, out);
    }
  }
}

}  // namespace

IntervalMask moved_intervals(const IntervalMask& mask, const MaskShape& to, const TokensOfEntries& tokens) {
  IntervalMask out(to);
  for (std::int64_t batch = 0; batch < to.batch; ++batch) {
    const TokensOfEntry kept = tokens(batch);
    const std::vector<std::int32_t> rows = row_numbers(kept.rows, mask.shape().rows, to.rows);
    for (std::int64_t head = 0; head < to.heads; ++head) ColumnMover(mask, out, batch, head, rows).move(kept.columns);
  }
  return out;
}

BitMask moved_bits(const BitMask& mask, const MaskShape& to, const TokensOfEntries& tokens, Executor& executor) {
  return build_bits(to, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<CellRowBuilder>(to.columns)](std::int64_t batch, std::int64_t head,
                                                                     std::int64_t cell_row, CellRows& out) {
      const TokensOfEntry kept = tokens(batch);
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t count = std::min<std::int64_t>(kCellSize, to.rows - row0);
      for (std::int64_t r = 0; r < count;) {
        const CellRowPart part = part_from(kept.rows, row0 + r, count - r);
        if (part.count > 0) show_part(mask, batch, head, part, kept.columns, r, *cells);
        r += std::max<std::int64_t>(part.count, 1);
      }
      cells->drain(count, out);
    };
  });
}

}  // namespace flashmask
