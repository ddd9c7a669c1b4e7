// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/backward_workspace.h"
#include "flashmask/attention.h"

namespace flashmask::cuda {

/// Finds the gradient of the sinks, where the call asks for it: −Σ e^(sink − lse) · Δ over rows, from their statistics,
/// which earlier launches on the stream have filled. Gives the same bits on every run.
void launch_sink_gradient(const Problem& problem, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          cudaStream_t stream);

}  // namespace flashmask::cuda
