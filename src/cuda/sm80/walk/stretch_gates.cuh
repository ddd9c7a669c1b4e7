// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/gate_arithmetic.cuh"
#include "cuda/instructions/mma.h"
#include "cuda/sm80/walk/walk_arguments.h"

/// The weights of the steps of a stretch. With b the sums of log_forget from a step's begin on, l of log_input, and M
/// the scale of the state before it, all in powers of two, row i has the scale m(i) = max(0, b(i) + M, max over j ≤ i
/// of b(i) − b(j) + l(j)), and the weight of key j in row i is D(i, j) = 2^(b(i) − b(j) + l(j) − m(i)), at most 1.
namespace flashmask::cuda::sm80 {

/// What is multiplied with what in a step, one number per token. i: a token whose output this is, or its gradient; j:
/// one that it sees. "Summed": the tokens of y and z; "rows": those of x and of what the walk writes.
struct alignas(16) StepFactors {
  // D(i, j) = 2^(rows − summed), in pairs of numbers: b − m of i less b − l of j, or backwards −(b − l) less −(b − m).
  float rows_high[kWalkTokens], rows_low[kWalkTokens];
  float summed_high[kWalkTokens], summed_low[kWalkTokens];
  float pair[kWalkTokens], pair_extra[kWalkTokens];  // of i: D (x · y) becomes D (pair · (x · y) + pair_extra)
  float into[kWalkTokens], into_extra[kWalkTokens];  // of summed tokens: y zᵀ into the state, and into its vector
  float from[kWalkTokens], from_extra[kWalkTokens];  // of rows: x times the state, and its vector, or, of o, 2^−m
  float out[kWalkTokens];                            // of rows: the result
  float gain;                                        // of the state
};

/// Returns two neighbouring factors; the first has an even number.
__device__ __forceinline__ float2 two_of(const float* factors) { return *reinterpret_cast<const float2*>(factors); }

/// Returns the scale of the state before a stretch.
__device__ __forceinline__ double scale_before(const WalkStretch& stretch, int head, int heads,
                                               const double* scale_behind, const WalkScales& initial) {
  if (stretch.parent >= 0) return scale_behind[static_cast<std::int64_t>(stretch.parent) * heads + head];
  return initial.data == nullptr ? 0 : initial.data[stretch.root * initial.item + head * initial.head] * kLog2E;
}

/// The gates of a stretch of one head, in shared memory.
struct StretchGates {
  WalkStretch stretch;
  int head;
  double totals[kWalkSteps];      // sums of log_forget over a step
  double scales[kWalkSteps + 1];  // of the states before steps, and of that behind the last
  double tokens[3][kWalkTokens];  // of the step whose factors are made next
  StepFactors factors[2];

  /// Reads the stretch and finds its scales. To be called by all threads; ends with a barrier. from_zero: the state
  /// before it is zero, whatever it is.
  __device__ __forceinline__ void begin(const WalkArguments& arguments, int number, int of_head, bool from_zero) {
    const WalkStretch& own = arguments.plan.stretches[number];
    const unsigned thread = thread_index();
    if (thread == 0) stretch = own, head = of_head;
    if (static_cast<int>(thread) < own.steps()) {
      const double* const from =
          arguments.gates.of(of_head, arguments.plan.steps, own.first_step + static_cast<int>(thread));
      totals[thread] = from[kWalkTokens - 1];
      scales[thread + 1] = from[3 * kWalkTokens - 1];
    }
    __syncthreads();
    if (thread == 0) {
      double scale =
          from_zero ? 0
                    : scale_before(own, of_head, arguments.plan.heads, arguments.scale_behind, arguments.initial_scale);
      scales[0] = scale;
#pragma unroll 1
      for (int step = 0; step < own.steps(); ++step)
        scales[step + 1] = scale = at_least_zero(totals[step] + larger(scale, scales[step + 1]));
    }
    __syncthreads();
  }

  __device__ __forceinline__ int tokens_of(int step) const {
    return min(stretch.tokens - step * kWalkTokens, kWalkTokens);
  }
  /// Returns the number of a step of the head in arrays of steps.
  __device__ __forceinline__ std::int64_t number_of(const WalkPlanView& plan, int step) const {
    return static_cast<std::int64_t>(head) * plan.steps + stretch.first_step + step;
  }
  __device__ __forceinline__ int row_of(int step) const { return stretch.row + step * kWalkTokens; }
  /// Returns the rows of a tensor up to the end of a step; those behind it are read as zeros.
  __device__ __forceinline__ Rows rows_of(const WalkTensor& tensor, int step) const {
    Rows rows = tensor.of(stretch.batch, head);
    rows.rows = row_of(step) + tokens_of(step);
    return rows;
  }

  /// Issues copies of a step's numbers, if there is such a step: those of the thread's own token.
  __device__ __forceinline__ void ask(const WalkArguments& arguments, int step) {
    const unsigned thread = thread_index();
    if (thread >= kWalkTokens || step < 0) return;
    const double* const from = arguments.gates.of(head, arguments.plan.steps, stretch.first_step + step) + thread;
    for (int i = 0; i < 3; ++i) copy_8(shared_address(&tokens[i][thread]), from + i * kWalkTokens);
  }

  /// Makes the factors of a step from what ask() has copied.
  __device__ __forceinline__ void make(const WalkArguments& arguments, int step) {
    const unsigned t = thread_index();
    if (t >= kWalkTokens || step < 0) return;
    StepFactors& to = factors[step % 2];
    const double sum = tokens[0][t], column = tokens[1][t], top = tokens[2][t];
    const double before = scales[step], behind = scales[step + 1], total = totals[step];
    const double own = at_least_zero(sum + larger(before, top));
    const bool forward = is_forward(arguments.role);
    split(forward ? sum - own : -column, to.rows_high[t], to.rows_low[t]);
    split(forward ? column : own - sum, to.summed_high[t], to.summed_low[t]);
    if (t == 0) to.gain = power(total + before - behind);
    const bool exists = static_cast<int>(t) < tokens_of(step);
    const float scale = arguments.scale, of_state = power(sum + before - own),
                into_state = power(total - behind - column);
    float divisor = power(own), extra = 0;
    if (arguments.divisors.factor != nullptr && !arguments.only_divisors && exists) {
      const std::int64_t at = number_of(arguments.plan, step) * kWalkTokens + t;
      divisor = arguments.divisors.factor[at];
      if (arguments.divisors.gradient != nullptr) extra = arguments.divisors.gradient[at];
    }
    float pair = 0, pair_extra = 0, into = 0, into_extra = 0, from = 0, from_extra = 0, out = 0;
    if (exists) {
      if (arguments.role == WalkRole::output) {
        pair = scale, into = into_extra = into_state, from = of_state * scale, from_extra = power(-own), out = divisor;
      } else if (arguments.role == WalkRole::query_gradient) {
        pair = divisor, pair_extra = extra, into = into_extra = into_state;
        from = of_state * divisor, from_extra = of_state * extra, out = scale;
      } else {
        pair = divisor * scale, into = of_state * divisor * scale, from = into_state, out = 1;
        if (arguments.role == WalkRole::key_gradient)
          pair_extra = extra * scale, into_extra = of_state * extra * scale, from_extra = into_state;
      }
    }
    to.pair[t] = pair, to.pair_extra[t] = pair_extra;
    to.into[t] = into, to.into_extra[t] = into_extra;
    to.from[t] = from, to.from_extra[t] = from_extra;
    to.out[t] = out;
  }
};

}  // namespace flashmask::cuda::sm80
