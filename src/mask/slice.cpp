// SPDX-License-Identifier: Apache-2.0
#include "flashmask/slice.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "mask/cell_reader.h"
#include "mask/cell_row_builder.h"
#include "mask/cell_rows.h"
#include "mask/chosen_tokens.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

std::string text(const char* axis, std::size_t i, const Span& span) {
  return std::string(axis) + "[" + std::to_string(i) + "] = [" + grouped(span.begin) + ", " + grouped(span.end) + ")";
}

void check_range(const char* axis, std::span<const Span> spans, std::int64_t tokens) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (span.begin < 0 || span.end < span.begin || span.end > tokens)
      refuse("slice: " + text(axis, i, span) + " is no range of the mask's " + grouped(tokens) + " " + axis +
             "; give 0 <= begin <= end <= " + grouped(tokens));
  }
}

void check_ascending(std::span<const Span> rows) {
  for (std::size_t i = 0, last = 0; i < rows.size(); ++i) {
    if (rows[i].begin == rows[i].end) continue;
    if (rows[i].begin < rows[last].end && last < i)
      refuse(
          "slice: " + text("rows", i, rows[i]) + " begins before " + text("rows", last, rows[last]) +
          " ends; give rows in ascending order, each once: rows in another order need more than two ranges a column");
    last = i;
  }
}

void check_disjoint(std::span<const Span> columns) {
  std::vector<Span> sorted;
  std::ranges::copy_if(columns, std::back_inserter(sorted), [](const Span& span) { return span.begin < span.end; });
  std::ranges::sort(sorted, {}, &Span::begin);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].begin < sorted[i - 1].end)
      refuse("slice: column " + grouped(sorted[i].begin) + " lies in two spans; give each column once");
  }
}

/// Returns [tokens + 1]: how many of the chosen rows come before each row.
std::vector<std::int32_t> rows_before(const ChosenTokens& rows, std::int64_t tokens) {
  std::vector<std::int32_t> before(static_cast<std::size_t>(tokens) + 1, static_cast<std::int32_t>(rows.count()));
  std::int64_t token = 0;
  for (std::int64_t i = 0; i < rows.spans(); ++i) {
    auto number = static_cast<std::int32_t>(rows.first(i));
    for (; token < rows.span(i).begin; ++token) before[static_cast<std::size_t>(token)] = number;
    for (; token < rows.span(i).end; ++token) before[static_cast<std::size_t>(token)] = number++;
  }
  return before;
}

/// Slices intervals. The chosen rows of a masked range are consecutive, so each range stays one range.
IntervalMask slice_intervals(const IntervalMask& mask, const ChosenTokens& rows, const ChosenTokens& columns) {
  const MaskShape& from = mask.shape();
  IntervalMask out({from.batch, from.heads, rows.count(), columns.count()});
  const std::vector<std::int32_t> before = rows_before(rows, from.rows);
  const auto left = [&](Interval range) {
    return Interval{before[static_cast<std::size_t>(range.begin)], before[static_cast<std::size_t>(range.end)]};
  };
  for (std::int64_t batch = 0; batch < from.batch; ++batch) {
    for (std::int64_t head = 0; head < from.heads; ++head) {
      for (std::int64_t i = 0; i < columns.spans(); ++i) {
        std::size_t source = mask.index(batch, head, columns.span(i).begin);
        std::size_t target = out.index(batch, head, columns.first(i));
        for (std::int64_t c = columns.span(i).begin; c < columns.span(i).end; ++c, ++source, ++target)
          out.set(target, left(mask.first(source)), left(mask.second(source)));
      }
    }
  }
  return out;
}

/// Slices a block map by spans of whole blocks.
BlockMap slice_blocks(const BlockMap& map, const ChosenTokens& rows, const ChosenTokens& columns) {
  const MaskShape& from = map.shape();
  const auto blocks = [&](const Span& span) { return (span.end - span.begin + map.block() - 1) / map.block(); };
  std::vector<std::uint8_t> keep;
  for (std::int64_t batch = 0; batch < from.batch; ++batch) {
    for (std::int64_t head = 0; head < from.heads; ++head) {
      for (std::int64_t i = 0; i < rows.spans(); ++i) {
        for (std::int64_t r = 0; r < blocks(rows.span(i)); ++r) {
          const std::uint8_t* row = map.row(batch, head, rows.span(i).begin / map.block() + r);
          for (std::int64_t k = 0; k < columns.spans(); ++k) {
            const std::uint8_t* begin = row + columns.span(k).begin / map.block();
            keep.insert(keep.end(), begin, begin + blocks(columns.span(k)));
          }
        }
      }
    }
  }
  return {{from.batch, from.heads, rows.count(), columns.count()}, map.block(), keep};
}

/// Consecutive rows of one row of cells: `count` of them, starting at its row `row`.
struct CellRowPart {
  std::int64_t cell_row;
  std::int64_t row;
  std::int64_t count;
};

/// Returns the longest part, of at most `most` rows, whose first row has the new number `number`.
CellRowPart part_from(const ChosenTokens& rows, std::int64_t number, std::int64_t most) {
  const std::int64_t i = rows.span_of(number);
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

BitMask slice_bits(const BitMask& mask, const ChosenTokens& rows, const ChosenTokens& columns, Executor& executor) {
  const MaskShape shape{mask.shape().batch, mask.shape().heads, rows.count(), columns.count()};
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<CellRowBuilder>(shape.columns)](std::int64_t batch, std::int64_t head,
                                                                        std::int64_t cell_row, CellRows& out) {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t count = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      for (std::int64_t r = 0; r < count;) {
        const CellRowPart part = part_from(rows, row0 + r, count - r);
        show_part(mask, batch, head, part, columns, r, *cells);
        r += part.count;
      }
      cells->drain(count, out);
    };
  });
}

}  // namespace

Mask slice(const Mask& mask, std::span<const Span> rows, std::span<const Span> columns, Executor& executor) {
  const MaskShape& shape = mask.shape();
  check_range("rows", rows, shape.rows);
  check_range("columns", columns, shape.columns);
  check_ascending(rows);
  check_disjoint(columns);
  const ChosenTokens chosen_rows(rows), chosen_columns(columns);
  const std::string description = mask.description() + ", " + grouped(chosen_rows.count()) + " of " +
                                  grouped(shape.rows) + " rows and " + grouped(chosen_columns.count()) + " of " +
                                  grouped(shape.columns) + " columns";
  const LoweredMask& lowered = mask.lowered();
  if (is_plain_intervals(lowered))
    return {slice_intervals(lowered.intervals(), chosen_rows, chosen_columns), description};
  const BlockMap* blocks = lowered.blocks();
  if (blocks != nullptr && chosen_rows.holds_whole(blocks->block(), shape.rows) &&
      chosen_columns.holds_whole(blocks->block(), shape.columns)) {
    const Mask intervals(slice_intervals(lowered.intervals(), chosen_rows, chosen_columns), description);
    const Mask both = intervals & slice_blocks(*blocks, chosen_rows, chosen_columns);
    return {both.lowered(), description, both.misfit()};
  }
  return {slice_bits(*to_bits(lowered, executor), chosen_rows, chosen_columns, executor), description};
}

}  // namespace flashmask
