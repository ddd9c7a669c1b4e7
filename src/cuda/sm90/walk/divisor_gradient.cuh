// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/row_product.cuh"
#include "cuda/sm90/walk/walk_arguments.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda::sm90 {

inline constexpr int kDivisorThreads = 256;

struct DivisorGradientArguments {
  const WalkVisit* steps;  ///< of the plan, of head 0
  int heads, step_count;
  TensorRows o, grad_o;
  float* divisor;  ///< RowParts::divisor; in: what the product of o and grad_o is to be multiplied by; out: times that
};

/// Multiplies by the products of rows of o and their gradients, a warp per row in turn, a block per step and head.
template <class T>
__global__ void __launch_bounds__(kDivisorThreads)
    divisor_gradient_kernel(const __grid_constant__ DivisorGradientArguments arguments) {
  const int head = static_cast<int>(blockIdx.x) % arguments.heads, lane = static_cast<int>(thread_index()) % 32;
  const WalkVisit& step = arguments.steps[static_cast<int>(blockIdx.x) / arguments.heads];
  float* const divisor =
      arguments.divisor + (static_cast<std::int64_t>(head) * arguments.step_count + step.step) * kWalkTokens;
  const Rows o = arguments.o.of(step.batch, head), grad_o = arguments.grad_o.of(step.batch, head);
  for (int token = static_cast<int>(thread_index()) / 32; token < step.tokens; token += kDivisorThreads / 32) {
    const float product = product_of_rows<T>(o.first + (step.row + token) * o.stride,
                                             grad_o.first + (step.row + token) * grad_o.stride, o.dim);
    if (lane == 0) divisor[token] *= product;
  }
}

}  // namespace flashmask::cuda::sm90
