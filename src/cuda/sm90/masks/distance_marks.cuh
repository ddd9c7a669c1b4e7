// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/scores/changed_weights.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/scores.h"

/// ALiBi for kernels whose warps share what is known of a tile's tokens. A token's *mark* is
/// slope · (its position − an origin near the tile), in units of products; a score loses the distance of its two marks,
/// or gains it where the slope is negative.
namespace flashmask::cuda::sm90 {

/// Return the position of a query, and of a key. Past the last token, where nothing is visible, the last one's does.
__device__ __forceinline__ float query_position(const AlibiArguments& alibi, int batch, int token) {
  if (alibi.query_positions == nullptr) return static_cast<float>(token + alibi.row_shift);
  return __ldg(alibi.query_positions + batch * alibi.query_positions_batch + min(token, alibi.query_length - 1));
}
__device__ __forceinline__ float key_position(const AlibiArguments& alibi, int batch, int token) {
  if (alibi.key_positions == nullptr) return static_cast<float>(token);
  return __ldg(alibi.key_positions + batch * alibi.key_positions_batch + min(token, alibi.key_length - 1));
}

/// Returns the slope of a query head in units of products.
__device__ __forceinline__ float slope_of(const AlibiArguments& alibi, int batch, int head) {
  return __ldg(alibi.slopes + batch * alibi.slopes_batch + head) * alibi.to_products;
}

/// Takes the distances of marks from scores. `lines`: marks of the lane's lines; `places`: marks of a unit's places, in
/// shared memory; `slope`: what has the slope's sign.
template <int kUnits, int kEights>
__device__ __forceinline__ void bias_by_distance(float (&s)[kUnits][kEights][4], const RowNumbers<kUnits>& lines,
                                                 const float* places, float slope) {
  const auto* const from = reinterpret_cast<const float2*>(places) + lane_index() % 4;
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const float2 marks = from[4 * eight];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[unit][eight][i] -= copysignf(lines.at(unit, eight, i) - (i % 2 == 0 ? marks.x : marks.y), slope);
  }
}

/// Weighs scores that lose the distances of marks (changed_weights.cuh).
template <class Lines, class Rows>
struct DistancedWeights {
  const Lines& lines;   // marks of the lane's lines
  const float* places;  // marks of a unit's places, in shared memory
  const float &slope, &scale_log2;
  const Rows& lse_log2;

  __device__ __forceinline__ ChangedWeight operator()(int unit, int eight, int i, float product) const {
    const float2 marks = reinterpret_cast<const float2*>(places)[4 * eight + lane_index() % 4];
    product -= copysignf(lines.at(unit, eight, i) - (i % 2 == 0 ? marks.x : marks.y), slope);
    return {exp2_approximate(fmaf(product, scale_log2, -lse_log2.at(unit, eight, i))), 1};
  }
};
template <class Lines, class Rows>
DistancedWeights(const Lines&, const float*, const float&, const float&, const Rows&) -> DistancedWeights<Lines, Rows>;

}  // namespace flashmask::cuda::sm90
