// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_launch.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_32(KernelEntries& entries) { add_large_entries<32>(entries); }

}  // namespace flashmask::cuda::sm80
