#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/backward_workspace.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm90 {

/// Turns the sums that the column kernel left in the workspace into the gradient of q. head_dim: 64 or 128, that of the
/// kernel; it adds tiles of 128 rows where it is 64, of 64 rows where it is 128.
void launch_grad_query_rows(const Problem& problem, const TensorView& grad_q, const BackwardWorkspace& workspace,
                            int head_dim, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
