// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/tile_scores.cuh"

/// A softcap: products of queries and keys become tanh(product · scale / cap), from −1 to 1, which cap · log₂ e then
/// turns into scores as it does everywhere else (ScoreArguments).
namespace flashmask::cuda {

/// tanh(x) from x · 2 log₂ e, as 1 − 2 / (2^(x · 2 log₂ e) + 1): right to 2^−21 of 1, and ±1 where the power overflows
/// or vanishes.
__device__ __forceinline__ float tanh_of_power(float exponent) {
  return fmaf(-2, reciprocal_approximate(exp2_approximate(exponent) + 1), 1);
}

template <int kUnits, int kEights>
__device__ __forceinline__ void cap(float (&s)[kUnits][kEights][4], const float& to_exponent) {
  for_each_score<kUnits, kEights>(
      [&](int unit, int eight, int i) { s[unit][eight][i] = tanh_of_power(s[unit][eight][i] * to_exponent); });
}

/// The derivative of a capped score, 1 − y² for y = tanh(…). Kept nowhere, y is found from the score's probability:
/// log₂ p = (y + bias) · scale_log2 − lse_log2, `per_scale` = 1 / scale_log2. Where p is 0, which has no logarithm, the
/// result is 0 or a number.
__device__ __forceinline__ float slope_of_capped(float p, float lse_log2, float bias, float per_scale) {
  const float y = fmaxf(fmaf(log2_approximate(p) + lse_log2, per_scale, -bias), -1);
  return fmaf(-y, y, 1);
}

}  // namespace flashmask::cuda
