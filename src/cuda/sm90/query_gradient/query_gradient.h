// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/views.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// Returns the kernel's tile for heads of up to `head_dim` dims: 64, 128, 192 or 256.
TileShape query_gradient_tile(int head_dim);

/// Launches the second pass of a deterministic backward: gradients of q alone, whole rows of tiles at a time, each in
/// one order of additions. `map`: the map of query_gradient_tile() in the plan, by rows. The statistics of rows must be
/// in the workspace; `next_item` must point to 0.
template <MaskForm kForm>
void launch_query_gradient(const Plan& plan, const BackwardTensors& tensors, const DeviceMap& map,
                           const TileChoice& choice, const BackwardWorkspace& workspace, int head_dim,
                           const KernelExecution& execution, int* next_item);

}  // namespace flashmask::cuda::sm90
