// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "flashmask/device_plan.h"

namespace flashmask::cuda {

/// The masked rows of a column, in IntervalMask's normal form.
struct MaskedRows {
  int2 first, second;  ///< begin, end
};

__device__ inline int2 clip(int begin, int end, int rows) {
  const int2 range{max(begin, 0), min(end, rows)};
  return range.x < range.y ? range : int2{0, 0};
}

/// Returns what the vectors of a column say (docs/masks.md); `at` counts columns of all batch entries and heads.
__device__ inline MaskedRows masked_rows(const DeviceRowIndices& rows, std::int64_t at) {
  const std::int32_t* given = rows.values + at * rows.vectors;
  const int end = static_cast<int>(rows.shape.rows);
  int2 lower{}, upper{};
  if (rows.causal) {
    const auto diagonal = static_cast<int>(at % rows.shape.columns + rows.shape.rows - rows.shape.columns);
    lower = clip(given[0], rows.vectors == 2 ? given[1] : end, end);
    upper = clip(0, diagonal, end);
  } else if (rows.vectors == 2) {
    lower = clip(given[0], end, end);
    upper = clip(0, given[1], end);
  } else {
    lower = clip(given[0], given[1], end);
    upper = clip(given[2], given[3], end);
  }
  const bool swap = lower.x == lower.y || (upper.x < upper.y && upper.x < lower.x);
  MaskedRows masked = swap ? MaskedRows{upper, lower} : MaskedRows{lower, upper};
  if (masked.second.x < masked.second.y && masked.second.x <= masked.first.y) {
    masked.first.y = max(masked.first.y, masked.second.y);
    masked.second = {0, 0};
  }
  return masked;
}

}  // namespace flashmask::cuda
