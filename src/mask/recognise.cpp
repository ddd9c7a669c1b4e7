// SPDX-License-Identifier: Apache-2.0
#include "mask/recognise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "mask/cell_words.h"

namespace flashmask {
namespace {

template <class Body>
void for_each_bit(std::uint64_t word, const Body& body) {
  for (; word != 0; word &= word - 1) body(static_cast<std::size_t>(std::countr_zero(word)));
}

/// The masked row ranges of 64 columns, gathered from top to bottom.
class ColumnRanges {
 public:
  explicit ColumnRanges(std::int64_t columns) : present_(low_bits(columns)) {}

  /// Says which columns are visible from `row` up to the row of the next call.
  void step(std::int32_t row, std::uint64_t visible) {
    const std::uint64_t masked = ~visible & present_;
    if (masked == open_) return;
    for_each_bit(masked & ~open_, [&](std::size_t c) { begin_[c] = row; });
    for_each_bit(open_ & ~masked, [&](std::size_t c) { close(c, row); });
    open_ = masked;
  }
  void finish(std::int32_t rows) { step(rows, ~0ULL); }

  std::int64_t count(std::size_t column) const { return count_[column]; }
  Interval range(std::size_t column, std::size_t i) const { return ranges_[column][i]; }

 private:
  void close(std::size_t column, std::int32_t row) {
    std::int32_t& count = count_[column];
    if (count < 2) ranges_[column][static_cast<std::size_t>(count)] = {begin_[column], row};
    ++count;
  }

  std::uint64_t present_;
  std::uint64_t open_ = 0;  ///< columns inside a masked range
  std::array<std::int32_t, kCellSize> begin_{}, count_{};
  std::array<std::array<Interval, 2>, kCellSize> ranges_{};
};

/// Reads one mask head, one column of cells at a time.
class HeadReader {
 public:
  HeadReader(const BitMask& mask, std::int64_t batch, std::int64_t head) : mask_(mask) {
    for (std::int64_t r = 0; r < mask.cell_rows(); ++r) {
      next_.push_back(mask.cells().begin(mask.list(batch, head, r)));
      end_.push_back(mask.cells().end(mask.list(batch, head, r)));
    }
  }

  /// Reads one column of cells; columns must be read in ascending order.
  ColumnRanges read(std::int32_t cell_column) {
    ColumnRanges ranges(mask_.shape().columns - std::int64_t{cell_column} * kCellSize);
    for (std::size_t r = 0; r < next_.size(); ++r) read_cell(r, cell_column, ranges);
    ranges.finish(static_cast<std::int32_t>(mask_.shape().rows));
    return ranges;
  }

 private:
  void read_cell(std::size_t cell_row, std::int32_t cell_column, ColumnRanges& ranges) {
    const RunLists& cells = mask_.cells();
    std::int64_t& next = next_[cell_row];
    while (next < end_[cell_row] && cells.run(next).end <= cell_column) ++next;
    const auto row0 = static_cast<std::int32_t>(cell_row) * kCellSize;
    if (next == end_[cell_row] || cells.run(next).begin > cell_column) {
      ranges.step(row0, 0);
      return;
    }
    const Run& run = cells.run(next);
    if (run.kind == TileKind::full) {
      ranges.step(row0, ~0ULL);
      return;
    }
    const std::uint64_t* words = mask_.words(next) + std::int64_t{cell_column - run.begin} * kCellSize;
    const std::int64_t rows = std::min<std::int64_t>(kCellSize, mask_.shape().rows - row0);
    for (std::int32_t r = 0; r < rows; ++r) ranges.step(row0 + r, words[r]);
  }

  const BitMask& mask_;
  std::vector<std::int64_t> next_, end_;  ///< for each row of cells, its runs not yet passed
};

/// Writes the 64 columns, or returns the first that has more than two ranges.
std::optional<Misfit> write(const ColumnRanges& ranges, std::int64_t batch, std::int64_t head, std::int64_t column0,
                            IntervalMask& out) {
  for (std::int64_t c = 0; c < std::min<std::int64_t>(kCellSize, out.shape().columns - column0); ++c) {
    const auto lane = static_cast<std::size_t>(c);
    if (ranges.count(lane) > 2) return Misfit{batch, head, column0 + c, ranges.count(lane)};
    out.set(out.index(batch, head, column0 + c), ranges.range(lane, 0), ranges.range(lane, 1));
  }
  return std::nullopt;
}

}  // namespace

Recognised recognise(const BitMask& mask) {
  const MaskShape& shape = mask.shape();
  auto intervals = std::make_shared<IntervalMask>(shape);
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      HeadReader reader(mask, batch, head);
      for (std::int64_t cell = 0; cell < mask.cell_columns(); ++cell) {
        const ColumnRanges ranges = reader.read(static_cast<std::int32_t>(cell));
        const auto misfit = write(ranges, batch, head, cell * kCellSize, *intervals);
        if (misfit) return {nullptr, misfit};
      }
    }
  }
  return {std::move(intervals), std::nullopt};
}

}  // namespace flashmask
