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
  float of_forget = 0, of_input = 0;
  for (int slice = 0; slice < parts.slices; ++slice) {
    const std::int64_t of_step = parts.at(head, slice, step.step), from = of_step * kWalkTokens;
    float sum = parts.crossing[from + token] + parts.across[of_step];
#pragma unroll 8
    for (int other = 0; other < kWalkTokens; ++other)
      if (other < step.tokens) sum += other < token ? parts.of_keys[from + other] : parts.of_queries[from + other];
    of_forget += sum;
    if (parts.of_inputs != nullptr) of_input += parts.of_inputs[from + token];
  }
  const auto write = [&](const GateGradients& to, float number) {
    if (to.data != nullptr) to.data[step.batch * to.batch + (step.row + token) * to.row + head * to.head] = number;
  };
  write(arguments.log_forget, of_forget);
  write(arguments.log_input, of_input);
}

}  // namespace flashmask::cuda::sm90
