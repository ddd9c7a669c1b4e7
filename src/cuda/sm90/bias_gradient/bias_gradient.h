// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/backward_workspace.h"
#include "cuda/common/views.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// Launches the gradient of a bias of each score on Hopper: bfloat16, without dropout, both the bias and its gradient
/// such that the copy engine takes them. Returns false where a call is not like that, and then does nothing. map: of
/// the plan, by columns.
bool launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map);

}  // namespace flashmask::cuda::sm90
