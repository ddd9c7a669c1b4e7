// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_launch.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_96_compact(KernelEntries& entries) { add_compact_entries<96>(entries); }

}  // namespace flashmask::cuda::sm80
