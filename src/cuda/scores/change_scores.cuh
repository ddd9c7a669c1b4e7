// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/alibi.cuh"
#include "cuda/scores/bias_values.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/views/scores.h"

/// The two places where a kernel changes scores, change_scores() and for_each_slope(). A new change is a line in each,
/// and a member of ScoreArguments.
namespace flashmask::cuda {

/// The place of scores in kernels that take no tensors of biases.
struct PlaceWithoutBias : PlaceByRows {
  static constexpr bool kTakesBias = false;
  __device__ __forceinline__ explicit PlaceWithoutBias(const PlaceByRows& place) : PlaceByRows(place) {}
};

/// In kernels that have no registers to read eight values at a time.
struct PlaceOfPairs : PlaceByRows {
  static constexpr bool kTakesEights = false;
  __device__ __forceinline__ explicit PlaceOfPairs(const PlaceByRows& place) : PlaceByRows(place) {}
};

template <class Place>
__device__ __forceinline__ bool adds_bias(const ScoreArguments& score) {
  return Place::kTakesBias && score.bias.values != nullptr;
}

/// Turns a product into the power of two of a score to which `value` is added. From here on scores need no scale, and a
/// row's maximum is exactly its largest score, however large the values: a maximum that is multiplied by a scale is
/// rounded apart from it.
__device__ __forceinline__ float add_bias(const BiasArguments& bias, float product, float value) {
  return fmaf(product, bias.product_log2, value * kLog2E);
}

/// Starts to fetch what change_scores() reads for a tile of scores: called ahead of their product.
template <int kUnits, int kEights, class Place>
__device__ __forceinline__ void fetch_changes(const ScoreArguments& score, const Place& place) {
  if constexpr (Place::kTakesBias) {
    if (adds_bias<Place>(score)) BiasValues<kUnits, kEights, Place>(score.bias, place).prefetch();
  }
}

/// Changes the scores of a tile, ahead of hiding.
template <int kUnits, int kEights, class Place>
__device__ __forceinline__ void change_scores(float (&s)[kUnits][kEights][4], const ScoreArguments& score,
                                              const Place& place) {
  if (score.to_exponent != 0) cap(s, score.to_exponent);
  if constexpr (Place::kTakesBias) {
    if (adds_bias<Place>(score))
      return BiasValues<kUnits, kEights, Place>(score.bias, place)
          .for_each([&](int unit, int eight, int i, float value) {
            s[unit][eight][i] = add_bias(score.bias, s[unit][eight][i], value);
          });
  }
  if (score.alibi.slopes != nullptr)
    for_each_penalty<kUnits, kEights>(score.alibi, place,
                                      [&](int unit, int eight, int i, float penalty) { s[unit][eight][i] -= penalty; });
}

/// Calls body(unit, eight, i, slope) with the derivative of each changed score by the score, found from its
/// probability; not where all of them are 1.
template <int kUnits, int kEights, class Rows, class Place, class Body>
__device__ __forceinline__ void for_each_slope(const float (&p)[kUnits][kEights][4], const ScoreArguments& score,
                                               const Rows& lse_log2, const Place& place, const Body& body) {
  if (score.to_exponent == 0) return;
  const float product_log2 = adds_bias<Place>(score) ? score.bias.product_log2 : score.scale_log2;
  const float per_scale = reciprocal_approximate(product_log2);
  const auto find = [&](int unit, int eight, int i, float bias_log2) {
    body(unit, eight, i, slope_of_capped(p[unit][eight][i], lse_log2.at(unit, eight, i) - bias_log2, per_scale));
  };
  if constexpr (Place::kTakesBias) {
    if (adds_bias<Place>(score))
      return BiasValues<kUnits, kEights, Place>(score.bias, place)
          .for_each([&](int unit, int eight, int i, float value) { find(unit, eight, i, value * kLog2E); });
  }
  if (score.alibi.slopes != nullptr)
    return for_each_penalty<kUnits, kEights>(score.alibi, place, [&](int unit, int eight, int i, float penalty) {
      find(unit, eight, i, -penalty * product_log2);
    });
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) { find(unit, eight, i, 0); });
}

/// Multiplies probabilities by the derivatives of their changed scores, ahead of differentiate().
template <int kUnits, int kEights, class Rows, class Place>
__device__ __forceinline__ void follow_changes(float (&p)[kUnits][kEights][4], const ScoreArguments& score,
                                               const Rows& lse_log2, const Place& place) {
  for_each_slope(p, score, lse_log2, place,
                 [&](int unit, int eight, int i, float slope) { p[unit][eight][i] *= slope; });
}

}  // namespace flashmask::cuda
