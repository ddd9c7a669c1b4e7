// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/backward_workspace.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask::cuda {

/// Computes the gradient of a bias, if a call wants it, behind the statistics of rows: on every GPU by mma.sync.
/// map: of the plan, by columns.
void launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map);

}  // namespace flashmask::cuda
