// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_row.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_192(KernelRows& rows) { add_large_rows<192>(rows); }

}  // namespace flashmask::cuda::sm80
