// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/mma.h"

namespace flashmask::cuda::sm80 {

/// Sums for the gradient of q in global memory: [part of the rows of all heads][warp][in accumulator layout]. The
/// closing launch reads them in the same order.
template <class Shape>
struct QuerySums {
  static constexpr int kUnits = Shape::kSumRows / 16, kEights = Shape::kSumDims / 8;

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int first_row() { return warp() / Shape::kSumAcross * Shape::kSumRows; }
  static __device__ __forceinline__ int first_dim() { return warp() % Shape::kSumAcross * Shape::kSumDims; }

  /// Returns where the first of the lane's four numbers of a 16 × 8 accumulator lies.
  static __device__ __forceinline__ std::int64_t place(std::int64_t part, int unit, int eight) {
    return part * Shape::kPartSums + warp() * (Shape::kSumRows * Shape::kSumDims) + (unit * kEights + eight) * 128 +
           lane_index() * 4;
  }

  /// Adds d to the sums, for kCount of the warp's eights of dims from first_eight on.
  template <int kCount>
  static __device__ __forceinline__ void add(float* sums, std::int64_t part, int first_eight,
                                             const float (&d)[kUnits][kCount][4]) {
    float* const to = sums + place(part, 0, first_eight);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int eight = 0; eight < kCount; ++eight) {
        const float(&four)[4] = d[unit][eight];
        add_to_global(to + (unit * kEights + eight) * 128, four[0], four[1], four[2], four[3]);
      }
  }
};

}  // namespace flashmask::cuda::sm80
