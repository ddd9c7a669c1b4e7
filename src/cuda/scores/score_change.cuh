// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/changed_weights.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/change.h"
#include "cuda/views/scores.h"

/// A change of scores that a kernel is compiled with when a plan is made (cuda/compile). It is the text of
///
///     struct Change {
///       static constexpr bool kLocates;  // whether it reads where a score lies; if not, the constructor gets zeros
///       static constexpr bool kSlope;    // whether its derivative is not 1 everywhere
///       static constexpr bool kGuards;   // whether its derivative may be infinite or NaN
///       // The place is that of the lane's first score.
///       __device__ Change(const ChangeOperands&, int batch, int head, int row, int column);
///       __device__ float value(float score, int down, int right) const;
///       __device__ float value(float score, int down, int right, float& slope) const;
///       // Where it reads a bias: the same with the derivative by what the bias has for the score.
///       __device__ float value_by_bias(float score, int down, int right, float& slope) const;
///     };
///
/// `score`: a scaled product; `down`, `right`: how many rows and columns further on it lies than the lane's first. The
/// text may use the functions here.
namespace flashmask::cuda {

/// Where a number of a tensor lies, by the indices of its first axes; those past an end, of scores that are hidden,
/// take the last one.
template <int kAxes>
__device__ __forceinline__ std::int64_t place_in(const ChangeTensor& tensor, const int (&indices)[kAxes]) {
  std::int64_t place = 0;
#pragma unroll
  for (int axis = 0; axis < kAxes; ++axis)
    place += min(max(indices[axis], 0), tensor.sizes[axis] - 1) * tensor.strides[axis];
  return place;
}

/// Returns a number of a tensor of any dtype, and of one that is known to be float32.
template <class... Indices>
__device__ __forceinline__ float at(const ChangeTensor& tensor, Indices... indices) {
  const std::int64_t place = place_in(tensor, {indices...});
  if (tensor.dtype == DType::f32) return __ldg(static_cast<const float*>(tensor.data) + place);
  const std::uint32_t word = __ldg(static_cast<const std::uint16_t*>(tensor.data) + place);
  return tensor.dtype == DType::f16 ? unpack<__half>(word).x : unpack<__nv_bfloat16>(word).x;
}
template <class... Indices>
__device__ __forceinline__ float at_float32(const ChangeTensor& tensor, Indices... indices) {
  return __ldg(static_cast<const float*>(tensor.data) + place_in(tensor, {indices...}));
}

__device__ __forceinline__ float tanh_of(float x) { return tanh_of_power(x * (2 * kLog2E)); }
__device__ __forceinline__ float exp_of(float x) { return exp2_approximate(x * kLog2E); }
__device__ __forceinline__ float log_of(float x) { return log2_approximate(x) * kLn2; }
__device__ __forceinline__ float sqrt_of(float x) { return sqrtf(x); }
__device__ __forceinline__ float reciprocal_of(float x) { return reciprocal_approximate(x); }

/// Returns an angle less whole turns, from −π to π.
__device__ __forceinline__ float within_a_turn(float x) {
  constexpr float kTurns = 0.159154937F, kRest = 6.42063821e-9F;  // 1 / 2π, and what its first part lacks
  const float whole = rintf(x * kTurns);
  return fmaf(x, kRest, fmaf(x, kTurns, -whole)) * 6.28318531F;
}
__device__ __forceinline__ float cos_of(float x) { return __cosf(within_a_turn(x)); }
__device__ __forceinline__ float sin_of(float x) { return __sinf(within_a_turn(x)); }

/// The quotient rounded down.
__device__ __forceinline__ int floor_quotient(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

template <class Change, class Place>
__device__ __forceinline__ Change change_at(const ChangeOperands& operands, const Place& place) {
  if constexpr (Change::kLocates)
    return Change(operands, place.batch, place.head, place.row(lane_index()), place.column(lane_index()));
  else
    return Change(operands, 0, 0, 0, 0);
}

/// Turns a tile's products into the powers of two of changed scores, ahead of hiding. Multiplied here, not with the
/// maximum later on, a row's maximum is exactly its largest score, however large the change makes it.
template <class Change, class Place, int kUnits, int kEights>
__device__ __forceinline__ void change_tile(float (&s)[kUnits][kEights][4], const ChangeOperands& operands, float scale,
                                            const Place& place) {
  const Change change = change_at<Change>(operands, place);
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    s[unit][eight][i] =
        change.value(s[unit][eight][i] * scale, Place::rows_to(unit, eight, i), Place::columns_to(unit, eight, i)) *
        kLog2E;
  });
}

/// Weighs changed scores (changed_weights.cuh).
template <class Change, class Place, class Rows>
struct ChangeWeights {
  static constexpr bool kGuards = Change::kGuards;
  const Change& change;
  const Place& place;
  const float &scale, &scale_log2;  // ScoreArguments
  const Rows& lse_log2;

  __device__ __forceinline__ ChangedWeight operator()(int unit, int eight, int i, float product) const {
    ChangedWeight weight{0, 1};
    const int down = Place::rows_to(unit, eight, i), right = Place::columns_to(unit, eight, i);
    float changed;
    if constexpr (Change::kSlope)
      changed = change.value(product * scale, down, right, weight.slope);
    else
      changed = change.value(product * scale, down, right);
    // The product is rounded as change_tile() rounds it, so that p is that of the forward however large scores are.
    weight.p = exp2_approximate(fmaf(changed * kLog2E, scale_log2, -lse_log2.at(unit, eight, i)));
    if constexpr (kGuards) weight.p = fmaxf(weight.p, 0);  // NaN, of rows behind the last one, becomes 0
    return weight;
  }
};
template <class Change, class Place, class Rows>
ChangeWeights(const Change&, const Place&, const float&, const float&, const Rows&)
    -> ChangeWeights<Change, Place, Rows>;

/// Turns products into probabilities times the derivatives of changed scores by what the bias has for them.
template <class Change, class Place, int kUnits, int kEights, class Rows>
__device__ __forceinline__ void weigh_by_bias(float (&s)[kUnits][kEights][4], const ChangeOperands& operands,
                                              const ScoreArguments& score, const Rows& lse_log2, const Place& place) {
  const Change change = change_at<Change>(operands, place);
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    float slope;
    const float changed = change.value_by_bias(s[unit][eight][i] * score.scale, Place::rows_to(unit, eight, i),
                                               Place::columns_to(unit, eight, i), slope);
    const float p = exp2_approximate(fmaf(changed * kLog2E, score.scale_log2, -lse_log2.at(unit, eight, i)));
    // Rows behind the last one may make NaN, which is not above 0, and a hidden score an infinite slope.
    s[unit][eight][i] = p > 0 ? p * slope : 0;
  });
}

}  // namespace flashmask::cuda
