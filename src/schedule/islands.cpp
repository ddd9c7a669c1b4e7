// SPDX-License-Identifier: Apache-2.0
#include "schedule/islands.h"

#include <algorithm>

#include "schedule/visible_rows.h"

namespace flashmask {
namespace {

/// Appends islands from left to right.
class IslandList {
 public:
  /// Appends the rows and columns from the last island's end to the given ends.
  void add(std::int64_t row_end, std::int64_t column_end) {
    const Span rows{row_, row_end}, columns{column_, column_end};
    row_ = row_end;
    column_ = column_end;
    const std::int64_t height = rows.end - rows.begin, width = columns.end - columns.begin;
    if (height == 0 && width == 0) return;
    const bool single = height == 0 || width == 0 || (height == 1 && width == 1);
    if (single && !all_.empty() && all_.back().single) {
      all_.back().rows.end = row_end;
      all_.back().columns.end = column_end;
    } else {
      all_.push_back({rows, columns, single});
    }
  }

  std::int64_t row() const { return row_; }
  std::int64_t column() const { return column_; }
  std::vector<Island> take() { return std::move(all_); }

 private:
  std::vector<Island> all_;
  std::int64_t row_ = 0, column_ = 0;
};

}  // namespace

std::vector<Island> islands(const LoweredMask& mask, std::int64_t batch, Executor& executor) {
  VisibleRows visible(mask.shape().rows, mask.shape().columns);
  visible.add(mask, batch, executor);
  IslandList list;
  std::int64_t column = 0;
  for (const VisibleRows::Sides& cut : visible.cuts()) {
    if (cut.free()) {
      list.add(std::max(cut.above, list.row()), column);
      list.add(cut.below, column);  // rows that see nothing
    }
    ++column;
  }
  return list.take();
}

}  // namespace flashmask
