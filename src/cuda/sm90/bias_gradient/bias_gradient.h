// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/backward_workspace.h"
#include "cuda/common/views.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// Computes the gradient of a bias of each score on Hopper (common/bias_gradient.h). It serves bfloat16 without
/// dropout, where the copy engine takes both the bias and its gradient.
bool launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map);

}  // namespace flashmask::cuda::sm90
