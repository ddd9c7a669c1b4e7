// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/views/scores.h"

/// The softmax of rows whose scores come tile by tile.
namespace flashmask::cuda {

constexpr float kRescaleThreshold = 8;  // the running maximum may lag behind by this power of two

/// Adds a sink to a row's lse and takes its share from the row's factor; logarithms are to base 2. A row that sees
/// nothing, whose lse is −∞, keeps its factor.
__device__ __forceinline__ void add_sink(float sink_log2, float& factor, float& lse_log2) {
  if (lse_log2 == -INFINITY) {
    lse_log2 = sink_log2;
    return;
  }
  const float ratio = exp2_approximate(-fabsf(sink_log2 - lse_log2));  // smaller to larger
  // 1 + ratio is between 1 and 2, where the short instructions are right to 2^−22.
  factor *= __fdividef(sink_log2 > lse_log2 ? ratio : 1, 1 + ratio);
  lse_log2 = fmaxf(sink_log2, lse_log2) + __log2f(1 + ratio);
}

/// A row's factor for its outputs and its lse in powers of two, from its running maximum and sum.
struct FinishedRow {
  float factor, lse_log2;

  static __device__ __forceinline__ FinishedRow of(float maximum, float sum, float scale_log2) {
    return {sum > 0 ? 1 / sum : 0, sum > 0 ? maximum * scale_log2 + log2f(sum) : -INFINITY};
  }

  /// For kernels with dropout and no registers to spare: takes `kept_scale` into the factor, by the short division,
  /// right to 2^−22. Rows that see nothing are no case of their own, since their output is 0 and their lse is −∞ + −∞:
  /// a constant for them would take a register through all loops.
  static __device__ __forceinline__ FinishedRow with_dropout(float maximum, float sum, float scale_log2,
                                                             float kept_scale) {
    return {__fdividef(kept_scale, fmaxf(sum, 1e-30F)), maximum * scale_log2 + log2f(sum)};
  }

  __device__ __forceinline__ float lse() const { return lse_log2 * kLn2; }

  /// Adds the row's sink. `row`: the row's number in the sequence of `rows` rows, past which the last one's is read.
  template <class T>
  __device__ __forceinline__ void add_sink_of(const SinkView& sinks, int batch, int head, int row, int rows) {
    add_sink(sinks.at<T>(batch, head, min(row, rows - 1)) * kLog2E, factor, lse_log2);
  }
};

/// The running softmax of a warp's rows: of each unit of 16, a lane has rows lane / 4 and lane / 4 + 8. scale_log2 is
/// passed by reference: read where it is used, it takes no register.
template <int kUnits>
class RunningSoftmax {
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

  /// Puts the maximum of a row of padding above all scores, so that it has no part in what the warp's rows do together.
  __device__ __forceinline__ void leave_out(int unit, int row) { maximum_[unit][row] = INFINITY; }

  /// Finds the maxima of a unit's two rows over the warp's scores. Uses two chains per row: in a single one each
  /// operation would wait for the one before.
  template <int kEights>
  static __device__ __forceinline__ void find_maxima(const float (&s)[kEights][4], float (&found)[2]) {
    float chains[4] = {s[0][0], s[0][1], s[0][2], s[0][3]};
#pragma unroll
    for (int eight = 1; eight < kEights; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) chains[i] = fmaxf(chains[i], s[eight][i]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      found[row] = fmaxf(chains[2 * row], chains[2 * row + 1]);
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 1));
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 2));
    }
  }

  /// Returns whether the running maximum of one of the lane's rows lags behind the one found by more than the
  /// threshold. A smaller lag only changes rounding: numerator and denominator share it.
  __device__ __forceinline__ bool any_lags_behind(const OfRows& found, const float& scale_log2) const {
    bool any = false;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int row = 0; row < 2; ++row)
        any |= (found[unit][row] - maximum_[unit][row]) * scale_log2 > kRescaleThreshold;
    return any;
  }

  /// Raises the running maxima to those found, and the sums with them; `factors` are what outputs so far must be
  /// multiplied by.
  __device__ __forceinline__ void raise(const OfRows& found, OfRows& factors, const float& scale_log2) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float raised = fmaxf(found[unit][row], maximum_[unit][row]);
        const float shift = raised == -INFINITY ? 0 : raised;
        factors[unit][row] = exp2_approximate((maximum_[unit][row] - shift) * scale_log2);
        maximum_[unit][row] = raised;
        sum_[unit][row] *= factors[unit][row];
      }
    }
  }

  /// Turns kCount eights of scores, from `first` on, into probabilities, and adds those of each of the lane's rows to
  /// its number in `sums`.
  template <int kCount, int kEights>
  __device__ __forceinline__ void exponentiate(float (&s)[kUnits][kEights][4], int first, const float& scale_log2,
                                               OfRows& sums) const {
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
        sums[unit][i % 4 / 2] += p;
      }
    }
  }

  /// Does so and adds to the lane's running sums at once.
  template <int kCount, int kEights>
  __device__ __forceinline__ void exponentiate(float (&s)[kUnits][kEights][4], int first, const float& scale_log2) {
    exponentiate<kCount>(s, first, scale_log2, sum_);
  }

  /// Sums to start from: adding to −0 changes no bit, so that the compiler leaves the first addition out.
  static __device__ __forceinline__ void clear_sums(OfRows& sums) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int row = 0; row < 2; ++row) sums[unit][row] = -0.0F;
  }

  __device__ __forceinline__ void add_sums(const OfRows& sums) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int row = 0; row < 2; ++row) sum_[unit][row] += sums[unit][row];
  }

  /// Return a row's running maximum, and the sum of its probabilities over the warp's columns.
  __device__ __forceinline__ float maximum(int unit, int row) const { return maximum_[unit][row]; }
  __device__ __forceinline__ float sum(int unit, int row) const {
    float sum = sum_[unit][row];
    sum += __shfl_xor_sync(~0U, sum, 1);
    return sum + __shfl_xor_sync(~0U, sum, 2);
  }

 private:
  OfRows maximum_, sum_;
};

/// Multiplies outputs so far by what raise() found for their rows.
template <int kUnits, int kOutputs>
__device__ __forceinline__ void rescale(float (&o)[kUnits][kOutputs][4], const float (&factors)[kUnits][2]) {
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
    for (int i = 0; i < 4 * kOutputs; ++i) o[unit][i / 4][i % 4] *= factors[unit][i % 4 / 2];
}

}  // namespace flashmask::cuda
