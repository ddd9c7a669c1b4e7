// SPDX-License-Identifier: Apache-2.0
#include "schedule/free_cuts.h"

#include <algorithm>
#include <array>
#include <bit>

#include "mask/cell_reader.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// Counts the columns, or rows, that cross each cut of a sequence.
class CutCounter {
 public:
  explicit CutCounter(std::int64_t tokens) : change_(static_cast<std::size_t>(tokens) + 1) {}

  /// Counts a token that sees, or is seen by, tokens from `first` to `last`.
  void add(std::int64_t token, std::int64_t first, std::int64_t last) {
    ++change_[static_cast<std::size_t>(std::min(token, first))];
    --change_[static_cast<std::size_t>(std::max(token, last))];
  }

  std::vector<std::int64_t> uncrossed() const {
    std::vector<std::int64_t> cuts;
    // A token crosses the cut before token i if its stretch starts before i and ends at or after i.
    std::int64_t crossing = 0;
    for (std::size_t i = 0; i < change_.size(); ++i) {
      if (crossing == 0) cuts.push_back(static_cast<std::int64_t>(i));
      crossing += change_[i];
    }
    return cuts;
  }

 private:
  std::vector<std::int64_t> change_;  ///< [tokens + 1]
};

void count_intervals(const IntervalMask& mask, CutCounter& counter) {
  const auto rows = static_cast<std::int32_t>(mask.shape().rows);
  const std::int64_t lists = mask.shape().batch * mask.shape().heads;
  std::size_t index = 0;
  for (std::int64_t list = 0; list < lists; ++list) {
    for (std::int64_t column = 0; column < mask.shape().columns; ++column, ++index) {
      const Interval first = mask.first(index), second = mask.second(index);
      const Interval last = second.empty() ? first : second;
      const std::int32_t begin = first.begin == 0 ? first.end : 0;
      const std::int32_t end = last.end == rows ? last.begin : rows;
      if (begin < end) counter.add(column, begin, end - 1);
    }
  }
}

/// The first and the last visible column of each of 64 rows.
struct CellRowBounds {
  std::array<std::int64_t, kCellSize> first, last;

  CellRowBounds(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t cell_row) {
    first.fill(mask.shape().columns);
    last.fill(-1);
    for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) { add(run, mask.shape().columns); });
  }

 private:
  void add(const CellRun& run, std::int64_t columns) {
    if (run.kind == TileKind::skip) return;
    for (std::size_t r = 0; r < first.size(); ++r) {
      if (run.kind == TileKind::full) {
        first[r] = std::min(first[r], std::int64_t{run.begin} * kCellSize);
        last[r] = std::min(std::int64_t{run.end} * kCellSize, columns) - 1;
        continue;
      }
      for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
        const std::uint64_t word = run.words_of(cell)[r];
        if (word == 0) continue;
        first[r] = std::min(first[r], std::int64_t{cell} * kCellSize + std::countr_zero(word));
        last[r] = std::int64_t{cell} * kCellSize + std::bit_width(word) - 1;
      }
    }
  }
};

void count_bits(const BitMask& mask, CutCounter& counter) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t list = 0; list < shape.batch * shape.heads; ++list) {
    for (std::int64_t cell_row = 0; cell_row < mask.cell_rows(); ++cell_row) {
      const CellRowBounds bounds(mask, list / shape.heads, list % shape.heads, cell_row);
      const std::int64_t row0 = cell_row * kCellSize;
      for (std::int64_t row = row0; row < std::min(row0 + kCellSize, shape.rows); ++row) {
        const auto r = static_cast<std::size_t>(row - row0);
        if (bounds.last[r] >= 0) counter.add(row, bounds.first[r], bounds.last[r]);
      }
    }
  }
}

}  // namespace

std::vector<std::int64_t> free_cuts(std::span<const Mask* const> masks, std::int64_t tokens, Executor& executor) {
  CutCounter counter(tokens);
  for (const Mask* mask : masks) {
    const LoweredMask& lowered = mask->lowered();
    if (is_plain_intervals(lowered)) {
      count_intervals(lowered.intervals(), counter);
    } else {
      count_bits(*to_bits(lowered, executor), counter);
    }
  }
  return counter.uncrossed();
}

}  // namespace flashmask
