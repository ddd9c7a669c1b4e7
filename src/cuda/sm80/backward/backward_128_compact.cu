// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_launch.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_128_compact(KernelEntries& entries) { add_compact_entries<128>(entries); }

}  // namespace flashmask::cuda::sm80
