// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/walk/walk_memory.cuh"

namespace flashmask::cuda::sm90 {

/// The tokens of an accumulator's rows: rows of the mask, or in the walk back its columns.
enum class OwnTokens { rows, columns };

/// Calls body(number, token, other, weights) for each two neighbouring numbers of a thread's accumulator of 64 × 64
/// pairs of tokens: they are of `token`, which is `own` or 8 behind it, with `other` and the token behind that, and the
/// weights are those of the two pairs.
template <OwnTokens kOwn, class Body>
__device__ __forceinline__ void for_each_two_pairs(const WalkFactors &factors, int own, const Body &body) {
  constexpr bool kRows = kOwn == OwnTokens::rows;
  const float *const own_high = kRows ? factors.rows_high : factors.summed_high,
                     *const own_low = kRows ? factors.rows_low : factors.summed_low,
                     *const other_high = kRows ? factors.summed_high : factors.rows_high,
                     *const other_low = kRows ? factors.summed_low : factors.rows_low;
  const float high[2] = {own_high[own], own_high[own + 8]}, low[2] = {own_low[own], own_low[own + 8]};
  const auto weight = [](float row_high, float row_low, float column_high, float column_low) {
    return exp2_approximate((row_high - column_high) + (row_low - column_low));
  };
#pragma unroll
  for (int eight = 0; eight < 8; ++eight) {
    const int other = 8 * eight + lane_index() % 4 * 2;
    const float2 others_high = *reinterpret_cast<const float2 *>(other_high + other),
                 others_low = *reinterpret_cast<const float2 *>(other_low + other);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float a = high[half], b = low[half];
      const float2 weights =
          kRows ? float2{weight(a, b, others_high.x, others_low.x), weight(a, b, others_high.y, others_low.y)}
                : float2{weight(others_high.x, others_low.x, a, b), weight(others_high.y, others_low.y, a, b)};
      body(4 * eight + 2 * half, own + 8 * half, other, weights);
    }
  }
}

}  // namespace flashmask::cuda::sm90
