#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/backward_workspace.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm90 {

/// Fills the statistics of all rows, and clears the counters. The value dim is at most `head_dim`, that of the kernel.
void launch_row_statistics(const Problem& problem, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                           int head_dim, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
