// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/walk_arguments.h"

namespace flashmask::cuda::sm90 {

struct GateGradientArguments {
  const WalkVisit* steps;  ///< of the plan, of head 0
  int heads;
  GateParts parts;
  GateGradients log_forget, log_input;
};

/// Adds up what the walks left, a block of kWalkTokens threads per step and head. Nothing is subtracted, so that small
/// gradients keep their digits beside large terms.
__global__ void gate_gradient_kernel(const __grid_constant__ GateGradientArguments arguments);

}  // namespace flashmask::cuda::sm90
