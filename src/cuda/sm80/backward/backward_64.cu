// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_row.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_64(KernelRows& rows) { add_large_rows<64>(rows); }

}  // namespace flashmask::cuda::sm80
