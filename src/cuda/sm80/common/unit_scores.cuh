// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/arithmetic.cuh"
#include "cuda/common/dropout.cuh"

/// Operations on a warp's scores between its products, as float[units of 16][eights][4]: units of rows and eights of
/// columns or, transposed, units of keys and eights of rows.
namespace flashmask::cuda::sm80 {

/// Packs the accumulators of one product, unit by unit, as the operand of the next, which takes 16 of the inner side
/// per step.
template <class T, int kUnits, int kSteps, int kEights>
__device__ __forceinline__ void pack_units(std::uint32_t (&packed)[kSteps][kUnits][4],
                                           const float (&s)[kUnits][kEights][4]) {
  static_assert(kEights == 2 * kSteps);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = s[unit][2 * step + i / 2];
        packed[step][unit][i] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
}

/// Sets to 0 the scores that dropout takes away, in scores packed by pack_units().
template <int kUnits, int kSteps, class Words>
__device__ __forceinline__ void drop_units(std::uint32_t (&packed)[kSteps][kUnits][4], const Words& dropped) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) drop(packed[step][unit], dropped, unit, step);
}

/// One number for each of the lane's rows. `rows`: the numbers from the warp's first row on.
template <int kUnits, int kEights>
struct OfRows {
  float numbers[kUnits][2];

  __device__ __forceinline__ explicit OfRows(const float* rows) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int half = 0; half < 2; ++half) numbers[unit][half] = rows[16 * unit + 8 * half + lane_index() / 4];
  }
  __device__ __forceinline__ float at(int unit, int, int i) const { return numbers[unit][i / 2]; }
};

/// OfRows for transposed scores.
template <int kUnits, int kEights>
struct OfTransposedRows {
  float2 numbers[kEights];

  __device__ __forceinline__ explicit OfTransposedRows(const float* rows) {
    const auto* from = reinterpret_cast<const float2*>(rows) + lane_index() % 4;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) numbers[eight] = from[4 * eight];
  }
  __device__ __forceinline__ float at(int, int eight, int i) const {
    return i % 2 == 0 ? numbers[eight].x : numbers[eight].y;
  }
};

/// Calls body(unit, eight, i, its row's number) for each of the lane's scores; i is the index in the accumulator.
template <template <int, int> class Rows, int kUnits, int kEights, class Body>
__device__ __forceinline__ void for_each_score(const float* of_rows, const Body& body) {
  const Rows<kUnits, kEights> rows(of_rows);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) body(unit, eight, i, rows.at(unit, eight, i));
}

/// Turns scores into probabilities. Rows that see nothing have lse = +∞ here, and probabilities of 0.
template <template <int, int> class Rows, int kUnits, int kEights>
__device__ __forceinline__ void exponentiate(float (&s)[kUnits][kEights][4], float scale_log2, const float* lse_log2) {
  for_each_score<Rows, kUnits, kEights>(lse_log2, [&](int unit, int eight, int i, float lse) {
    s[unit][eight][i] = exp2_approximate(fmaf(s[unit][eight][i], scale_log2, -lse));
  });
}

/// Turns gradients of probabilities, times `factor`, into gradients of scores.
template <template <int, int> class Rows, int kUnits, int kEights>
__device__ __forceinline__ void differentiate(float (&grad)[kUnits][kEights][4], const float (&p)[kUnits][kEights][4],
                                              const float* dots, float factor) {
  for_each_score<Rows, kUnits, kEights>(dots, [&](int unit, int eight, int i, float dot) {
    grad[unit][eight][i] = p[unit][eight][i] * fmaf(grad[unit][eight][i], factor, -dot);
  });
}

}  // namespace flashmask::cuda::sm80
