// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "flashmask/mask.h"
#include "mask/cell_reader.h"
#include "mask/cell_rows.h"
#include "mask/ranges.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// One operator in two forms: on masked ranges and on visible bits.
struct Operator {
  const char* symbol;
  void (*ranges)(std::span<const Interval>, std::span<const Interval>, std::vector<Interval>&);
  std::uint64_t (*bits)(std::uint64_t, std::uint64_t);
};

/// Visible where both masks are: the masked ranges unite.
constexpr Operator kAnd = {"&", unite, [](std::uint64_t a, std::uint64_t b) { return a & b; }};
/// Visible where either mask is: the masked ranges intersect.
constexpr Operator kOr = {"|", intersect, [](std::uint64_t a, std::uint64_t b) { return a | b; }};

std::size_t ranges_of(const IntervalMask& mask, std::int64_t batch, std::int64_t head, std::int64_t column,
                      std::array<Interval, 2>& out) {
  const MaskShape& shape = mask.shape();
  const std::size_t index = mask.index(broadcast_index(batch, shape.batch), broadcast_index(head, shape.heads), column);
  out = {mask.first(index), mask.second(index)};
  return out[0].empty() ? 0 : out[1].empty() ? 1 : 2;
}

/// Combines two masks into `out`; stops at the first column that has more than two ranges, and returns it.
std::optional<Misfit> combine_intervals(const IntervalMask& a, const IntervalMask& b, const Operator& op,
                                        IntervalMask& out) {
  const MaskShape& shape = out.shape();
  std::array<Interval, 2> of_a, of_b;
  std::vector<Interval> ranges;
  for (std::int64_t i = 0; i < shape.batch * shape.heads * shape.columns; ++i) {
    const std::int64_t column = i % shape.columns;
    const std::int64_t head = i / shape.columns % shape.heads;
    const std::int64_t batch = i / shape.columns / shape.heads;
    const std::size_t count_a = ranges_of(a, batch, head, column, of_a);
    const std::size_t count_b = ranges_of(b, batch, head, column, of_b);
    op.ranges(std::span(of_a).first(count_a), std::span(of_b).first(count_b), ranges);
    if (ranges.size() > 2) return Misfit{batch, head, column, std::ssize(ranges)};
    ranges.resize(2);
    out.set(static_cast<std::size_t>(i), ranges[0], ranges[1]);
  }
  return std::nullopt;
}

/// Returns the visible bits of one row of a cell of the run.
std::uint64_t word_of(const CellRun& run, std::int32_t cell, std::int64_t row) {
  if (run.kind != TileKind::partial) return run.kind == TileKind::full ? ~0ULL : 0;
  return run.words_of(cell)[row];
}

/// Combines cells [a.begin, end) of two runs, which both cover them. Reads no cell if neither run is partial.
void combine_cell_runs(const CellRun& a, const CellRun& b, std::int32_t end, const Operator& op, const MaskShape& shape,
                       std::int64_t rows, CellRows& out) {
  if (a.kind != TileKind::partial && b.kind != TileKind::partial) {
    if (op.bits(word_of(a, a.begin, 0), word_of(b, b.begin, 0)) != 0) out.add_full(a.begin, end);
    return;
  }
  // A full cell has bits past the mask's end, a partial one has none. Where those bits survive the operator, the result
  // is full and stores no words.
  std::array<std::uint64_t, kCellSize> words;
  for (std::int32_t cell = a.begin; cell < end; ++cell) {
    for (std::int64_t r = 0; r < kCellSize; ++r) {
      words[static_cast<std::size_t>(r)] = op.bits(word_of(a, cell, r), word_of(b, cell, r));
    }
    out.add(cell, words.data(), rows, shape.columns - std::int64_t{cell} * kCellSize);
  }
}

BitMask combine_bits(const BitMask& a, const BitMask& b, const Operator& op, const MaskShape& shape,
                     Executor& executor) {
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      CellReader of_a(a, batch, head, cell_row);
      CellReader of_b(b, batch, head, cell_row);
      const std::int64_t rows = shape.rows - cell_row * kCellSize;
      for (std::int32_t cell = 0; cell < a.cell_columns();) {
        const CellRun left = of_a.at(cell);
        const CellRun right = of_b.at(cell);
        const std::int32_t end = std::min(left.end, right.end);
        combine_cell_runs(left, right, end, op, shape, rows, out);
        cell = end;
      }
    };
  });
}

std::int64_t broadcast(const std::string& operation, const char* axis, std::int64_t a, std::int64_t b) {
  if (a != b && a != 1 && b != 1) {
    refuse(operation + ": the masks have " + grouped(a) + " and " + grouped(b) + " " + axis +
           "; give equal numbers, or 1 on one side");
  }
  return a == 1 ? b : a;
}

MaskShape common_shape(const MaskShape& a, const MaskShape& b, const std::string& operation) {
  if (a.rows != b.rows || a.columns != b.columns) {
    refuse(operation + ": the masks are " + grouped(a.rows) + " x " + grouped(a.columns) + " and " + grouped(b.rows) +
           " x " + grouped(b.columns) + " scores; give masks of the same size");
  }
  return {broadcast(operation, "batch entries", a.batch, b.batch), broadcast(operation, "heads", a.heads, b.heads),
          a.rows, a.columns};
}

Mask combine(const Mask& a, const Mask& b, const Operator& op) {
  const MaskShape shape = common_shape(a.shape(), b.shape(), std::string("Mask ") + op.symbol + " Mask");
  const std::string description = "(" + a.description() + " " + op.symbol + " " + b.description() + ")";
  if (is_plain_intervals(a.lowered()) && is_plain_intervals(b.lowered())) {
    IntervalMask intervals(shape);
    const auto misfit = combine_intervals(a.lowered().intervals(), b.lowered().intervals(), op, intervals);
    if (!misfit) return {std::move(intervals), description};
  }
  Executor& executor = default_executor();
  const auto bits_a = to_bits(a.lowered(), executor);
  const auto bits_b = to_bits(b.lowered(), executor);
  return {combine_bits(*bits_a, *bits_b, op, shape, executor), description};
}

/// Writes the complement, whose masked ranges are the visible ones of `mask`; returns false if any column has three.
bool complement_intervals(const IntervalMask& mask, IntervalMask& out) {
  const auto rows = static_cast<std::int32_t>(mask.shape().rows);
  const std::int64_t columns = mask.shape().batch * mask.shape().heads * mask.shape().columns;
  for (std::size_t i = 0; i < static_cast<std::size_t>(columns); ++i) {
    const Interval a = mask.first(i);
    const Interval b = mask.second(i);
    // Visible: [0, a), [a, b), [b, rows).
    const std::int32_t last = b.empty() ? a.end : b.end;
    const Interval top{0, a.begin};
    const Interval middle{a.end, b.empty() ? a.end : b.begin};
    const Interval bottom{last, rows};
    if (!top.empty() && !middle.empty() && !bottom.empty()) return false;
    out.set(i, top.empty() ? middle : top, bottom.empty() ? middle : bottom);
  }
  return true;
}

/// Adds the complement of a partial run, in the rows and columns that exist.
void complement_cells(const CellRun& run, const MaskShape& shape, std::int64_t rows, CellRows& out) {
  std::array<std::uint64_t, kCellSize> words;
  for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
    const std::uint64_t present = low_bits(shape.columns - std::int64_t{cell} * kCellSize);
    for (std::int64_t r = 0; r < kCellSize; ++r) {
      words[static_cast<std::size_t>(r)] = r < rows ? ~run.words_of(cell)[r] & present : 0;
    }
    out.add_partial(cell, words.data());
  }
}

BitMask complement_bits(const BitMask& mask, Executor& executor) {
  const MaskShape& shape = mask.shape();
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) {
        if (run.kind == TileKind::skip) out.add_full(run.begin, run.end);
        if (run.kind == TileKind::partial) complement_cells(run, shape, shape.rows - cell_row * kCellSize, out);
      });
    };
  });
}

}  // namespace

Mask operator&(const Mask& a, const Mask& b) { return combine(a, b, kAnd); }

Mask operator|(const Mask& a, const Mask& b) { return combine(a, b, kOr); }

Mask operator~(const Mask& mask) {
  const std::string description = "~" + mask.description();
  if (is_plain_intervals(mask.lowered())) {
    IntervalMask intervals(mask.shape());
    if (complement_intervals(mask.lowered().intervals(), intervals)) return {std::move(intervals), description};
  }
  Executor& executor = default_executor();
  return {complement_bits(*to_bits(mask.lowered(), executor), executor), description};
}

}  // namespace flashmask
