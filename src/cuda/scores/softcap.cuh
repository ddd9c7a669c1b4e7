// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/changed_weights.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/scores.h"

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

/// The polynomial of SoftcapArguments.
__device__ __forceinline__ float cap_near(float product, const SoftcapArguments& softcap) {
  const float square = product * product;
  const float high = fmaf(square, softcap.odd[3], softcap.odd[2]);
  return product * fmaf(fmaf(high, square, softcap.odd[1]), square, softcap.odd[0]);
}

/// Caps the scores of a warp, by special functions only where one of them lies too far from 0 for the polynomial. What
/// becomes of a score never depends on the others, which may be another document's.
template <int kUnits, int kEights>
__device__ __forceinline__ void cap(float (&s)[kUnits][kEights][4], const SoftcapArguments& softcap) {
  float farthest[2] = {0, 0};
  for_each_score<kUnits, kEights>(
      [&](int unit, int eight, int i) { farthest[i / 2] = fmaxf(farthest[i / 2], fabsf(s[unit][eight][i])); });
  if (__any_sync(~0U, fmaxf(farthest[0], farthest[1]) > softcap.near)) {
    for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
      float& score = s[unit][eight][i];
      const float far = tanh_of_power(score * softcap.to_exponent);
      score = fabsf(score) > softcap.near ? far : cap_near(score, softcap);
    });
  } else {
    for_each_score<kUnits, kEights>(
        [&](int unit, int eight, int i) { s[unit][eight][i] = cap_near(s[unit][eight][i], softcap); });
  }
}

/// The derivative of a capped score, 1 − y² for y = tanh(…). Kept nowhere, y is found from the score's probability:
/// log₂ p = y · scale_log2 + bias_log2 − lse_log2, where `without_bias` = lse_log2 − bias_log2 and `per_scale` =
/// 1 / scale_log2. Where p is 0, which has no logarithm, the result is 0 or a number.
__device__ __forceinline__ float slope_of_capped(float p, float without_bias, float per_scale) {
  const float y = fmaxf((log2_approximate(p) + without_bias) * per_scale, -1);
  return fmaf(-y, y, 1);
}

/// Weighs capped scores (changed_weights.cuh): y = tanh(…), whose derivative by what was capped is 1 − y².
template <class Rows>
struct CappedWeights {
  const float &to_exponent, &scale_log2;
  const Rows& lse_log2;

  __device__ __forceinline__ ChangedWeight operator()(int unit, int eight, int i, float product) const {
    const float y = tanh_of_power(product * to_exponent);
    return {exp2_approximate(fmaf(y, scale_log2, -lse_log2.at(unit, eight, i))), fmaf(-y, y, 1)};
  }
};
template <class Rows>
CappedWeights(const float&, const float&, const Rows&) -> CappedWeights<Rows>;

}  // namespace flashmask::cuda
