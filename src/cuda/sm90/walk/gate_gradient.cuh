// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/walk/gate_gradient.h"

namespace flashmask::cuda::sm90 {

__global__ void __launch_bounds__(kWalkTokens)
    gate_gradient_kernel(const __grid_constant__ GateGradientArguments arguments) {
  const int head = static_cast<int>(blockIdx.x) % arguments.heads, token = static_cast<int>(thread_index());
  const WalkVisit& step = arguments.steps[static_cast<int>(blockIdx.x) / arguments.heads];
  if (token >= step.tokens) return;
  const GateParts& parts = arguments.parts;
  const std::int64_t of_step = parts.at(head, step.step), from = of_step * kWalkTokens;
  float sum = parts.crossing[from + token] + parts.across[of_step];
#pragma unroll 8
  for (int other = 0; other < kWalkTokens; ++other)
    if (other < step.tokens) sum += other < token ? parts.of_keys[from + other] : parts.of_queries[from + other];
  const GateGradients& to = arguments.log_forget;
  to.data[step.batch * to.batch + (step.row + token) * to.row + head * to.head] = sum;
}

}  // namespace flashmask::cuda::sm90
