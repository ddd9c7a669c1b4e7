// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/views/scores.h"
#include "cuda/views/tensors.h"

/// The arithmetic of row statistics (BackwardStatistics), for the kernels that find them.
namespace flashmask::cuda {

/// lse and its gradient for one row. Past the last row lse is −∞, as in a row that sees nothing.
struct RowLse {
  float lse, gradient;

  __device__ __forceinline__ RowLse(const LseView& view, int batch, int head, int row) : lse(-INFINITY), gradient(0) {
    if (row >= view.query_length) return;
    lse = view.lse[batch * view.lse_batch + head * view.lse_head + row];
    if (view.grad_lse != nullptr)
      gradient = view.grad_lse[batch * view.grad_lse_batch + head * view.grad_lse_head + row];
  }

  /// Stores the row's statistics at `at` in the workspace. `dot`: Σ o · grad_o of the row. Where lse is NaN,
  /// probabilities become +∞ instead of NaN: those of masked scores, which are −∞, stay 0, so that keys which the row
  /// does not see are not affected.
  __device__ __forceinline__ void store(const BackwardStatistics& out, std::int64_t at, float dot) const {
    constexpr float kLowest = -3.40282347e38F;
    out.lse_log2[at] = lse == -INFINITY ? INFINITY : fmaxf(bound(lse * kLog2E), kLowest);
    out.dot[at] = lse > -INFINITY ? dot - gradient : 0;
  }

  /// Raises an lse so large that float32 rounds it and the scores apart, so that no probability exceeds 1. Both are
  /// right to 2^−21 of their size: from 2^20 on that is a factor of √2 and more, and the log of the row's sum is lost.
  static __device__ __forceinline__ float bound(float lse_log2) {
    constexpr float kLarge = 1 << 20, kRounding = 0x1p-21F;
    return fabsf(lse_log2) < kLarge ? lse_log2 : fmaf(fabsf(lse_log2), kRounding, lse_log2);
  }
};

/// Σ a · b over 8 numbers of T each.
template <class T>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<T>(left[i]), y = unpack<T>(right[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

}  // namespace flashmask::cuda
