// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/mask_view.h"

/// How kernels read a mask of intervals.
namespace flashmask::cuda {

/// Loads a column's two ranges of masked rows: begin, end, begin, end. Past the last column every row is masked.
__device__ __forceinline__ void load_intervals(const MaskView& mask, int list, int column, std::int32_t (&ends)[4]) {
  const bool exists = column < mask.columns;
  const std::int64_t at = static_cast<std::int64_t>(list) * mask.columns + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) ends[i] = exists ? __ldg(mask.intervals[i] + at) : i == 1 ? 1 << 30 : 0;
}

}  // namespace flashmask::cuda
