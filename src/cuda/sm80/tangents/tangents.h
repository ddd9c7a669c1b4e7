// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/attention.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// Launches the kernel of tangents for 16-bit elements T and heads of up to kDim dims, 64 or 128. `map`: by rows, of
/// tiles of 128 × 64.
template <class T, int kDim>
void launch_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map);

}  // namespace flashmask::cuda::sm80
