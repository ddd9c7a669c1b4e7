// SPDX-License-Identifier: Apache-2.0
#include "flashmask/row_ranges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/checks.h"
#include "flashmask/error.h"
#include "mask/cell_reader.h"
#include "mask/from_visible_columns.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// Where columns turn from masked to visible or back, ascending: what one row sees is [b₀, b₁), [b₂, b₃) and so on.
using Borders = std::vector<std::int32_t>;

/// Adds a border, or takes one out that is there.
void flip(Borders& borders, std::int32_t at) {
  const auto found = std::lower_bound(borders.begin(), borders.end(), at);
  if (found != borders.end() && *found == at)
    borders.erase(found);
  else
    borders.insert(found, at);
}

/// Returns how many ends express a row: the first one is that of a range from column 0, which may be empty.
int ends_of(const Borders& borders) {
  const bool from_start = !borders.empty() && borders.front() == 0;
  return static_cast<int>(borders.size()) + (from_start ? -1 : 1);
}

/// The borders of every row of a mask, one row after the other: list, then row.
class RowBorders {
 public:
  RowBorders(const MaskShape& shape, int most_ends) : shape_(shape), most_ends_(most_ends) {
    offsets_.reserve(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows) + 1);
  }

  void add(const Borders& row) {
    const int ends = ends_of(row);
    if (ends > most_ends_) refuse_row(ends);
    ends_ = std::max(ends_, ends);
    borders_.insert(borders_.end(), row.begin(), row.end());
    offsets_.push_back(borders_.size());
  }

  /// Lays them out [heads, ends, batch × rows].
  RowRanges ranges() const {
    RowRanges made{{}, shape_, ends_};
    const auto lines = static_cast<std::size_t>(shape_.batch * shape_.rows), ends = static_cast<std::size_t>(ends_);
    made.values.resize(static_cast<std::size_t>(shape_.heads) * ends * lines);
    std::size_t row = 0;
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      for (std::int64_t h = 0; h < shape_.heads; ++h)
        for (std::int64_t r = 0; r < shape_.rows; ++r, ++row) {
          const std::size_t at =
              static_cast<std::size_t>(h) * ends * lines + static_cast<std::size_t>(b * shape_.rows + r);
          write(std::span(borders_).subspan(offsets_[row], offsets_[row + 1] - offsets_[row]), &made.values[at], lines);
        }
    return made;
  }

 private:
  void write(std::span<const std::int32_t> row, std::int32_t* to, std::size_t lines) const {
    const bool from_start = !row.empty() && row.front() == 0;
    std::int32_t last = from_start ? row[1] : 0;
    *to = last;
    std::size_t next = from_start ? 2 : 0;
    for (int i = 1; i < ends_; ++i) {
      if (next < row.size()) last = row[next++];
      to[static_cast<std::size_t>(i) * lines] = last;
    }
  }

  [[noreturn]] void refuse_row(int ends) const {
    const auto row = static_cast<std::int64_t>(offsets_.size()) - 1;
    const std::int64_t list = row / shape_.rows;
    throw Error(Status::unsupported, "to_row_ranges: batch entry " + std::to_string(list / shape_.heads) +
                                         ", mask head " + std::to_string(list % shape_.heads) + ": row " +
                                         grouped(row % shape_.rows) + " needs " + std::to_string(ends) +
                                         " ends of visible ranges; at most " + std::to_string(most_ends_) +
                                         " are asked for");
  }

  MaskShape shape_;
  int most_ends_;
  int ends_ = 1;
  Borders borders_;
  std::vector<std::size_t> offsets_ = {0};
};

/// Sweeps the rows of intervals: each column turns at the ends of its masked ranges.
class IntervalSweep {
 public:
  explicit IntervalSweep(const IntervalMask& mask) : mask_(mask) {}

  void add_list(std::int64_t batch, std::int64_t head, RowBorders& out) {
    collect(batch, head);
    Borders borders;
    for (std::int64_t row = 0; row < mask_.shape().rows; ++row) {
      flip_columns(row, borders);
      out.add(borders);
    }
  }

 private:
  /// Calls body(row) for the rows where a column turns; before row 0 it is masked.
  template <class Body>
  void for_each_turn(std::size_t at, const Body& body) const {
    const auto rows = static_cast<std::int32_t>(mask_.shape().rows);
    const Interval first = mask_.first(at), second = mask_.second(at);
    if (rows > 0 && (first.begin > 0 || first.empty())) body(0);
    for (const Interval& masked : {first, second}) {
      if (masked.empty()) continue;
      if (masked.begin > 0) body(masked.begin);
      if (masked.end < rows) body(masked.end);
    }
  }

  /// Sorts the columns by the rows where they turn; those of one row stay ascending.
  void collect(std::int64_t batch, std::int64_t head) {
    const MaskShape& shape = mask_.shape();
    const std::size_t begin = mask_.index(batch, head, 0);
    offsets_.assign(static_cast<std::size_t>(shape.rows) + 2, 0);
    for (std::int64_t column = 0; column < shape.columns; ++column)
      for_each_turn(begin + static_cast<std::size_t>(column),
                    [&](std::int32_t row) { ++offsets_[static_cast<std::size_t>(row) + 2]; });
    for (std::size_t i = 1; i < offsets_.size(); ++i) offsets_[i] += offsets_[i - 1];
    columns_.resize(offsets_.back());
    for (std::int64_t column = 0; column < shape.columns; ++column)
      for_each_turn(begin + static_cast<std::size_t>(column), [&](std::int32_t row) {
        columns_[offsets_[static_cast<std::size_t>(row) + 1]++] = static_cast<std::int32_t>(column);
      });
  }

  void flip_columns(std::int64_t row, Borders& borders) const {
    const std::size_t last = offsets_[static_cast<std::size_t>(row) + 1];
    for (std::size_t i = offsets_[static_cast<std::size_t>(row)]; i < last;) {
      std::int32_t end = columns_[i] + 1;
      flip(borders, columns_[i]);
      for (++i; i < last && columns_[i] == end; ++i) ++end;
      flip(borders, end);
    }
  }

  const IntervalMask& mask_;
  std::vector<std::size_t> offsets_;  // of each row's columns
  std::vector<std::int32_t> columns_;
};

/// Adds the borders of 64 rows of bits.
void add_cell_row(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t cell_row, RowBorders& out) {
  std::array<Borders, kCellSize> rows;
  const auto columns = static_cast<std::int32_t>(mask.shape().columns);
  const auto show = [&](Borders& row, std::int32_t begin, std::int32_t end) {
    if (!row.empty() && row.back() == begin)
      row.back() = std::min(end, columns);
    else
      row.insert(row.end(), {begin, std::min(end, columns)});
  };
  for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) {
    if (run.kind == TileKind::skip) return;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (run.kind == TileKind::full) {
        show(rows[r], run.begin * kCellSize, run.end * kCellSize);
        continue;
      }
      for (std::int32_t cell = run.begin; cell < run.end; ++cell)
        for (std::uint64_t word = run.words_of(cell)[r]; word != 0;) {
          const int begin = std::countr_zero(word), length = std::countr_one(word >> begin);
          show(rows[r], cell * kCellSize + begin, cell * kCellSize + begin + length);
          word = begin + length == kCellSize ? 0 : word >> (begin + length) << (begin + length);
        }
    }
  });
  const std::int64_t count = std::min<std::int64_t>(kCellSize, mask.shape().rows - cell_row * kCellSize);
  for (std::int64_t r = 0; r < count; ++r) out.add(rows[static_cast<std::size_t>(r)]);
}

/// What one row sees, from its ends: sorted, clipped, without overlaps.
class RowReader {
 public:
  RowReader(std::span<const std::int32_t> values, const MaskShape& shape, int ends)
      : values_(values), shape_(shape), ends_(static_cast<std::size_t>(ends)) {}

  void read(std::int64_t batch, std::int64_t head, std::int64_t row, std::vector<masks::Span>& out) const {
    const auto lines = static_cast<std::size_t>(shape_.batch * shape_.rows);
    const std::int32_t* at =
        &values_[static_cast<std::size_t>(head) * ends_ * lines + static_cast<std::size_t>(batch * shape_.rows + row)];
    out.clear();
    out.push_back({0, *at});
    for (std::size_t i = 1; i < ends_; i += 2) out.push_back({at[i * lines], at[(i + 1) * lines]});
  }

 private:
  std::span<const std::int32_t> values_;
  MaskShape shape_;
  std::size_t ends_;
};

/// Turns ranges into borders.
void to_borders(std::vector<masks::Span>& ranges, std::int64_t columns, Borders& borders) {
  borders.clear();
  for (masks::Span& range : ranges)
    range = {std::clamp<std::int64_t>(range.begin, 0, columns), std::clamp<std::int64_t>(range.end, 0, columns)};
  std::ranges::sort(ranges, {}, &masks::Span::begin);
  for (const masks::Span& range : ranges) {
    if (range.begin >= range.end) continue;
    const auto begin = static_cast<std::int32_t>(range.begin), end = static_cast<std::int32_t>(range.end);
    if (!borders.empty() && begin <= borders.back())
      borders.back() = std::max(borders.back(), end);
    else
      borders.insert(borders.end(), {begin, end});
  }
}

/// Writes the masked ranges of the columns of one list, while rows go by; false where a column needs more than two.
class ColumnWriter {
 public:
  ColumnWriter(IntervalMask& mask, std::int64_t batch, std::int64_t head)
      : mask_(mask), begin_(mask.index(batch, head, 0)), columns_(static_cast<std::size_t>(mask.shape().columns)) {}

  bool add(std::int32_t row, const Borders& seen) {
    changes_.clear();
    std::ranges::set_symmetric_difference(before_, seen, std::back_inserter(changes_));
    for (std::size_t i = 0; i + 1 < changes_.size(); i += 2)
      for (std::int32_t column = changes_[i]; column < changes_[i + 1]; ++column)
        if (!columns_[static_cast<std::size_t>(column)].turn(row)) return false;
    before_ = seen;
    return true;
  }

  bool finish() {
    const auto rows = static_cast<std::int32_t>(mask_.shape().rows);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      if (!column.visible && !column.turn(rows)) return false;
      mask_.set(begin_ + i, column.masked[0], column.masked[1]);
    }
    return true;
  }

 private:
  struct Column {
    Interval masked[2];
    std::int32_t since = 0;
    std::int32_t count = 0;
    bool visible = false;

    /// Returns whether the masked range that ends here, if one does, is one of the first two.
    bool turn(std::int32_t row) {
      visible = !visible;
      const std::int32_t from = since;
      since = row;
      if (!visible || from == row) return true;
      if (count == 2) return false;
      masked[count++] = {from, row};
      return true;
    }
  };

  IntervalMask& mask_;
  std::size_t begin_;
  std::vector<Column> columns_;
  Borders before_, changes_;
};

/// Returns intervals, where two ranges per column suffice.
std::optional<IntervalMask> as_intervals(const RowReader& reader, const MaskShape& shape) {
  IntervalMask mask(shape);
  std::vector<masks::Span> ranges;
  Borders borders;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      ColumnWriter writer(mask, b, h);
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        reader.read(b, h, row, ranges);
        to_borders(ranges, shape.columns, borders);
        if (!writer.add(static_cast<std::int32_t>(row), borders)) return std::nullopt;
      }
      if (!writer.finish()) return std::nullopt;
    }
  return mask;
}

}  // namespace

RowRanges to_row_ranges(const Mask& mask, int most_ends) {
  if (most_ends < 1 || most_ends % 2 == 0)
    refuse("to_row_ranges: most_ends is " + std::to_string(most_ends) + "; give an odd number, from 1 on");
  const MaskShape& shape = mask.shape();
  RowBorders rows(shape, most_ends);
  const LoweredMask& lowered = mask.lowered();
  if (is_plain_intervals(lowered)) {
    IntervalSweep sweep(lowered.intervals());
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads; ++h) sweep.add_list(b, h, rows);
  } else {
    const std::shared_ptr<const BitMask> bits = to_bits(lowered, default_executor());
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t i = 0; i < bits->cell_rows(); ++i) add_cell_row(*bits, b, h, i, rows);
  }
  return rows.ranges();
}

Mask from_row_ranges(std::span<const std::int32_t> values, const MaskShape& shape, int ends) {
  const std::string name = "from_row_ranges";
  if (ends < 1 || ends % 2 == 0)
    refuse(name + ": there are " + std::to_string(ends) + " ends per row; give an odd number, from 1 on");
  check_shape(name, shape);
  const std::size_t expected = element_count(name, {shape.heads, ends, shape.batch, shape.rows});
  if (values.size() != expected)
    refuse(name + ": values has " + counted(values.size(), "value") + " but heads x ends x batch x rows is " +
           grouped(static_cast<std::int64_t>(expected)) + "; give int32 [heads, ends, batch x rows]");
  const RowReader reader(values, shape, ends);
  const std::string description = "from_row_ranges(" + std::to_string(ends) + " ends per row)";
  if (std::optional<IntervalMask> intervals = as_intervals(reader, shape)) return {std::move(*intervals), description};
  return {from_visible_columns(shape, [&](std::int64_t batch, std::int64_t head, std::int64_t row,
                                          std::vector<masks::Span>& out) { reader.read(batch, head, row, out); }),
          description};
}

}  // namespace flashmask
