// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask_shape.h"

namespace flashmask {

/// Half-open range of masked query rows of one key column; empty when begin >= end.
struct Interval {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  bool empty() const { return begin >= end; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// The exact lowered form of a mask that needs at most two masked row ranges per column (FlashMask, section 4.1):
/// memory is linear in the sequence. Causality is one of the two ranges.
///
/// Normal form, kept by every constructor: ranges are clipped to [0, rows), the first lies above the second with at
/// least one visible row between them, and an empty range is {0, 0} and comes last.
class FLASHMASK_API IntervalMask {
 public:
  /// Every score visible.
  explicit IntervalMask(const MaskShape& shape);

  const MaskShape& shape() const { return shape_; }

  /// Position of a column in the four arrays: [batch, heads, columns], columns innermost. Like first(), second() and
  /// visible() it is called in loops and checks nothing: undefined outside the mask.
  std::size_t index(std::int64_t batch, std::int64_t head, std::int64_t column) const {
    return static_cast<std::size_t>((batch * shape_.heads + head) * shape_.columns + column);
  }
  Interval first(std::size_t index) const { return {first_begin_[index], first_end_[index]}; }
  Interval second(std::size_t index) const { return {second_begin_[index], second_end_[index]}; }

  /// Sets the masked rows of a column to the union of two ranges in any order, overlapping, empty or out of bounds.
  /// Throws Status::invalid_argument where the mask has no such column.
  void set(std::size_t index, Interval a, Interval b);

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

  std::size_t memory_bytes() const;

  /// The four arrays that kernels read, int32 [batch, heads, columns].
  const std::int32_t* first_begin() const { return first_begin_.data(); }
  const std::int32_t* first_end() const { return first_end_.data(); }
  const std::int32_t* second_begin() const { return second_begin_.data(); }
  const std::int32_t* second_end() const { return second_end_.data(); }

  friend bool operator==(const IntervalMask&, const IntervalMask&) = default;

 private:
  MaskShape shape_;
  std::vector<std::int32_t> first_begin_, first_end_, second_begin_, second_end_;
};

}  // namespace flashmask
