// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/views.h"
#include "flashmask/attention.h"

namespace flashmask::cuda {

/// Fills the statistics of all rows, or does nothing where `choice` gives the work to the other launch. `head_dim`: the
/// kernel's, at least the problem's value dim.
void launch_row_statistics(const Plan& plan, const BackwardTensors& tensors, const TileChoice& choice,
                           const BackwardWorkspace& workspace, int head_dim, cudaStream_t stream);

}  // namespace flashmask::cuda
