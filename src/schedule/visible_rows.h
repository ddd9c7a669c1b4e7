// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/mask.h"

namespace flashmask {

/// The rows from the first to the last that see each column, under one list of a mask or several.
class VisibleRows {
 public:
  VisibleRows(std::int64_t rows, std::int64_t columns)
      : rows_(rows), begin_(static_cast<std::size_t>(columns), rows), end_(static_cast<std::size_t>(columns)) {}

  /// Adds what the heads of one batch entry show.
  void add(const LoweredMask& mask, std::int64_t batch, Executor& executor);

  /// The rows on the two sides of the cut before a column: a cut is free, which is to say that no row sees a column on
  /// the other side of it, if the rows are cut anywhere from `above` to `below`.
  struct Sides {
    std::int64_t above;  ///< the end of the rows that see an earlier column
    std::int64_t below;  ///< the first row that sees this or a later column

    bool free() const { return above <= below; }
  };

  /// Returns [columns + 1]: the sides of the cut before each column, and of the one after the last.
  std::vector<Sides> cuts() const;

 private:
  void add_intervals(const IntervalMask& mask, std::int64_t list);
  void add_bits(const BitMask& mask, std::int64_t batch, std::int64_t head);
  void add_column(std::int64_t column, std::int64_t begin, std::int64_t end);

  std::int64_t rows_;
  std::vector<std::int64_t> begin_, end_;  ///< [columns]; where no row sees a column, begin is `rows` and end 0
};

}  // namespace flashmask
