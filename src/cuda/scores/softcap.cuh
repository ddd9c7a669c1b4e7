// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
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

/// A capped score's probability, and the derivative of the score by what was capped, 1 − y² for y = tanh(…).
struct CappedWeight {
  float p, slope;

  __device__ __forceinline__ CappedWeight(float product, float to_exponent, float scale_log2, float lse_log2) {
    const float y = tanh_of_power(product * to_exponent);
    p = exp2_approximate(fmaf(y, scale_log2, -lse_log2));
    slope = fmaf(-y, y, 1);
  }
};

/// The backward's pass over a tile: turns products into probabilities times derivatives, one score after the other, so
/// that neither capped scores nor derivatives are kept, and calls keep(unit, eight, pair, p, p) with the probabilities
/// of each two that are packed together. kHides: whether scores whose bit is set in `hidden` are masked.
template <bool kHides, class Layout, int kUnits, int kEights, int kWords, class Rows, class Keep>
__device__ __forceinline__ void weigh_capped(float (&s)[kUnits][kEights][4], const std::uint32_t (&hidden)[kWords],
                                             const float& to_exponent, const float& scale_log2, const Rows& lse_log2,
                                             const Keep& keep) {
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        float p[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int i = 2 * pair + k;
          CappedWeight weight(s[unit][eight][i], to_exponent, scale_log2, lse_log2.at(unit, eight, i));
          if constexpr (kHides) {
            const auto [word, bit] = Layout::place(unit, eight, i);
            if (hidden[word] & 1U << bit) weight.p = 0;
          }
          p[k] = weight.p;
          s[unit][eight][i] = weight.p * weight.slope;
        }
        keep(unit, eight, pair, p[0], p[1]);
      }
}

/// Does so with the gradients of the probabilities at hand: packs probabilities by keep(), and gradients of scores, two
/// at a time, so that registers only become free. pause() is called now and then: a branch in it keeps the compiler
/// from working on more scores at once.
template <class T, bool kHides, class Layout, int kEights, int kSteps, int kWords, class Rows, class Keep, class Pause>
__device__ __forceinline__ void weigh_and_differentiate_capped(
    const float (&s)[1][kEights][4], const float (&grad)[1][kEights][4], std::uint32_t (&grad_s)[kSteps][1][4],
    const std::uint32_t (&hidden)[kWords], const float& to_exponent, const float& scale_log2, const Rows& lse_log2,
    const Rows& dots, const Keep& keep, const Pause& pause) {
  constexpr int kAtOnce = 8;
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    if (eight > 0 && eight % kAtOnce == 0) pause();
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float p[2], d[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = 2 * pair + k;
        CappedWeight weight(s[0][eight][i], to_exponent, scale_log2, lse_log2.at(0, eight, i));
        if constexpr (kHides) {
          const auto [word, bit] = Layout::place(0, eight, i);
          if (hidden[word] & 1U << bit) weight.p = 0;
        }
        weight.slope *= grad[0][eight][i] - dots.at(0, eight, i);
        p[k] = weight.p;
        d[k] = weight.p * weight.slope;
      }
      keep(0, eight, pair, p[0], p[1]);
      grad_s[eight / 2][0][eight % 2 * 2 + pair] = pack<T>(d[0], d[1]);
    }
  }
}

}  // namespace flashmask::cuda
