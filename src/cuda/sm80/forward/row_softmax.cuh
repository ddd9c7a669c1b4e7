// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/arithmetic.cuh"
#include "cuda/common/row_tile.cuh"
#include "cuda/sm80/forward/forward_arguments.h"

namespace flashmask::cuda::sm80 {

constexpr float kRescaleThreshold = 8;  // the running maximum may lag behind by this power of two

/// A row's factor for its outputs and its lse in base 2, from its running maximum and sum.
struct FinishedRow {
  float factor, lse_log2;

  __device__ __forceinline__ FinishedRow(float maximum, float sum, float scale_log2)
      : factor(sum > 0 ? 1 / sum : 0), lse_log2(sum > 0 ? maximum * scale_log2 + log2f(sum) : -INFINITY) {}

  __device__ __forceinline__ float lse() const { return lse_log2 * 0.693147180559945F; }

  /// Adds the row's sink. `row`: the row's number in the sequence.
  template <class T>
  __device__ __forceinline__ void add_sink_of(const ForwardArguments& arguments, const RowTile& tile, int row) {
    constexpr float kLog2E = 1.44269504088896F;
    const int existing = min(row, arguments.query_length - 1);
    add_sink(arguments.sinks.at<T>(tile.batch, tile.head, existing) * kLog2E, factor, lse_log2);
  }
};

/// The running softmax of a warp's rows: of each unit of 16, a lane has rows lane / 4 and lane / 4 + 8. scale_log2 is
/// passed by reference: read where it is used, it takes no register.
template <int kUnits>
class RowSoftmax {
 public:
  using OfRows = float[kUnits][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        maximum_[unit][row] = -INFINITY;
        sum_[unit][row] = 0;
      }
    }
  }

  /// Returns a row's maximum over the warp's scores.
  template <int kEights>
  static __device__ __forceinline__ float maximum_of(const float (&s)[kEights][4], int row) {
    float maximum = largest(s, row);
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    return fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
  }

  /// Returns whether a row's running maximum lags behind `found` by more than the threshold. A smaller lag only changes
  /// rounding: numerator and denominator share it.
  __device__ __forceinline__ bool lags_behind(float found, int unit, int row, const float& scale_log2) const {
    return (found - maximum_[unit][row]) * scale_log2 > kRescaleThreshold;
  }

  /// Raises the running maxima to those found, and rescales sums and outputs.
  template <int kOutputs>
  __device__ __forceinline__ void raise(const OfRows& found, float (&o)[kUnits][kOutputs][4], const float& scale_log2) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      float factor[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float raised = fmaxf(found[unit][row], maximum_[unit][row]);
        const float shift = raised == -INFINITY ? 0 : raised;
        factor[row] = exp2_approximate((maximum_[unit][row] - shift) * scale_log2);
        maximum_[unit][row] = raised;
        sum_[unit][row] *= factor[row];
      }
#pragma unroll
      for (int i = 0; i < 4 * kOutputs; ++i) o[unit][i / 4][i % 4] *= factor[i % 4 / 2];
    }
  }

  /// Turns kCount eights of scores, from `first` on, into probabilities, and adds them to the lane's sums.
  template <int kCount, int kEights>
  __device__ __forceinline__ void exponentiate(float (&s)[kUnits][kEights][4], int first, const float& scale_log2) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      float shift[2];
#pragma unroll
      for (int row = 0; row < 2; ++row)
        shift[row] = maximum_[unit][row] == -INFINITY ? 0 : maximum_[unit][row] * scale_log2;
#pragma unroll
      for (int i = 0; i < 4 * kCount; ++i) {
        float& p = s[unit][first + i / 4][i % 4];
        p = exp2_approximate(fmaf(p, scale_log2, -shift[i % 4 / 2]));
        sum_[unit][i % 4 / 2] += p;
      }
    }
  }

  /// Return a row's running maximum, and the sum of its probabilities over the warp's columns.
  __device__ __forceinline__ float maximum(int unit, int row) const { return maximum_[unit][row]; }
  __device__ __forceinline__ float sum(int unit, int row) const {
    float sum = sum_[unit][row];
    sum += __shfl_xor_sync(~0U, sum, 1);
    return sum + __shfl_xor_sync(~0U, sum, 2);
  }

 private:
  /// Uses two chains per row: in a single one each operation would wait for the one before.
  template <int kEights>
  static __device__ __forceinline__ float largest(const float (&s)[kEights][4], int row) {
    float chains[2] = {s[0][2 * row], s[0][2 * row + 1]};
#pragma unroll
    for (int eight = 1; eight < kEights; ++eight)
#pragma unroll
      for (int i = 0; i < 2; ++i) chains[i] = fmaxf(chains[i], s[eight][2 * row + i]);
    return fmaxf(chains[0], chains[1]);
  }

  OfRows maximum_, sum_;
};

}  // namespace flashmask::cuda::sm80
