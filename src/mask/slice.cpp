// SPDX-License-Identifier: Apache-2.0
#include "flashmask/slice.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "mask/chosen_tokens.h"
#include "mask/moved_mask.h"
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
  const MaskShape to{shape.batch, shape.heads, chosen_rows.count(), chosen_columns.count()};
  const auto tokens = [&](std::int64_t) { return TokensOfEntry{chosen_rows, chosen_columns}; };
  const LoweredMask& lowered = mask.lowered();
  if (is_plain_intervals(lowered)) return {moved_intervals(lowered.intervals(), to, tokens), description};
  const BlockMap* blocks = lowered.blocks();
  if (blocks != nullptr && chosen_rows.holds_whole(blocks->block(), shape.rows) &&
      chosen_columns.holds_whole(blocks->block(), shape.columns)) {
    const Mask intervals(moved_intervals(lowered.intervals(), to, tokens), description);
    const Mask both = intervals & slice_blocks(*blocks, chosen_rows, chosen_columns);
    return {both.lowered(), description, both.misfit()};
  }
  return {moved_bits(*to_bits(lowered, executor), to, tokens, executor), description};
}

}  // namespace flashmask
