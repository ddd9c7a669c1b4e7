#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/row_arguments.h"
#include "flashmask/attention.h"

namespace flashmask::cuda {

/// Fills the statistics of all rows, where the choice is for those who need them. The value dim is at most `head_dim`,
/// that of the kernel.
void launch_row_statistics(const Problem& problem, const BackwardTensors& tensors, const TileChoice& choice,
                           const BackwardWorkspace& workspace, int head_dim, cudaStream_t stream);

}  // namespace flashmask::cuda
