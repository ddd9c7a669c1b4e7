// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/tile_scores.cuh"

/// The backward's passes over a tile of changed scores, for kernels without registers to keep both products and what
/// they become: everything is done for one score before the next. weigh(unit, eight, i, product) returns a score's
/// ChangedWeight. kHides: whether scores whose bit is set in `hidden` are masked; Layout::place(unit, eight, i) says
/// which bit that is.
namespace flashmask::cuda {

/// The probability of a changed score, and the derivative of the score by its product.
struct ChangedWeight {
  float p, slope;
};

/// Weights whose slope may be infinite or NaN where p is 0.
template <class Weigh>
concept GuardsSlopes = requires {
  requires Weigh::kGuards;
};

/// Returns p times the slope.
template <class Weigh>
__device__ __forceinline__ float followed(const ChangedWeight& weight) {
  if constexpr (GuardsSlopes<Weigh>) return weight.p == 0 ? 0 : weight.p * weight.slope;
  return weight.p * weight.slope;
}

/// Returns what weighs the scores of an eight: itself, or what Weigh::of_eight() loads for them.
template <class Weigh>
__device__ __forceinline__ const Weigh& weights_of(const Weigh& weigh, int) {
  return weigh;
}
template <class Weigh>
requires Weigh::kLoadsEights __device__ __forceinline__ auto weights_of(const Weigh& weigh, int eight) {
  return weigh.of_eight(eight);
}

/// Turns products into probabilities times derivatives, so that neither changed scores nor derivatives are kept, and
/// calls keep(unit, eight, pair, p, p) with the probabilities of each two that are packed together.
template <bool kHides, class Layout, int kUnits, int kEights, int kWords, class Weigh, class Keep>
__device__ __forceinline__ void weigh_changed(float (&s)[kUnits][kEights][4], const std::uint32_t (&hidden)[kWords],
                                              const Weigh& weigh, const Keep& keep) {
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const auto& of_eight = weights_of(weigh, eight);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        float p[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int i = 2 * pair + k;
          ChangedWeight weight = of_eight(unit, eight, i, s[unit][eight][i]);
          if constexpr (kHides) {
            const auto [word, bit] = Layout::place(unit, eight, i);
            if (hidden[word] & 1U << bit) weight.p = 0;
          }
          p[k] = weight.p;
          s[unit][eight][i] = followed<Weigh>(weight);
        }
        keep(unit, eight, pair, p[0], p[1]);
      }
  }
}

/// Does so with the gradients of the probabilities at hand: packs probabilities by keep(), and gradients of scores, two
/// at a time, so that registers only become free. pause() is called now and then: a branch in it keeps the compiler
/// from working on more scores at once. kAtOnce: on how many eights it may work, at most, where that does not suffice.
/// `zero` is then a word of 0 that it does not know to be 0: masked by it, what has been packed changes the next
/// products, which thus wait for it.
template <class T, bool kHides, class Layout, int kAtOnce = 0, int kEights, int kSteps, int kWords, class Weigh,
          class Rows, class Keep, class Pause>
__device__ __forceinline__ void weigh_and_differentiate_changed(
    const float (&s)[1][kEights][4], const float (&grad)[1][kEights][4], std::uint32_t (&grad_s)[kSteps][1][4],
    const std::uint32_t (&hidden)[kWords], const Weigh& weigh, const Rows& dots, const Keep& keep, const Pause& pause,
    [[maybe_unused]] std::uint32_t zero = 0) {
  constexpr int kPause = 8;
  [[maybe_unused]] std::uint32_t nothing = 0;
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    if (eight > 0 && eight % kPause == 0) pause();
    if constexpr (kAtOnce > 0) {
      if (const int last = eight - 1; eight > 0 && eight % kAtOnce == 0)
        nothing = (grad_s[last / 2][0][last % 2 * 2] ^ grad_s[last / 2][0][last % 2 * 2 + 1]) & zero;
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float p[2], d[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = 2 * pair + k;
        float product = s[0][eight][i];
        if constexpr (kAtOnce > 0) product = __uint_as_float(__float_as_uint(product) ^ nothing);
        ChangedWeight weight = weigh(0, eight, i, product);
        if constexpr (kHides) {
          const auto [word, bit] = Layout::place(0, eight, i);
          if (hidden[word] & 1U << bit) weight.p = 0;
        }
        weight.slope *= grad[0][eight][i] - dots.at(0, eight, i);
        p[k] = weight.p;
        d[k] = followed<Weigh>(weight);
      }
      keep(0, eight, pair, p[0], p[1]);
      grad_s[eight / 2][0][eight % 2 * 2 + pair] = pack<T>(d[0], d[1]);
    }
  }
}

}  // namespace flashmask::cuda
