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

/// Multiplies probabilities by the derivative of their capped scores, 1 − y² for y = tanh(…). Kept nowhere, y is found
/// from its probability: log₂ p = y · scale_log2 − lse_log2. Where p is 0, which has no logarithm, so is the result.
template <int kUnits, int kEights, class Rows>
__device__ __forceinline__ void multiply_by_slopes(float (&p)[kUnits][kEights][4], const float& scale_log2,
                                                   const Rows& lse_log2) {
  const float to_bounded = reciprocal_approximate(scale_log2);
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    float& own = p[unit][eight][i];
    const float y = fmaxf((log2_approximate(own) + lse_log2.at(unit, eight, i)) * to_bounded, -1);
    own *= fmaf(-y, y, 1);
  });
}

}  // namespace flashmask::cuda
