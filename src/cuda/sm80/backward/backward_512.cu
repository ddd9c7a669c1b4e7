// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/wide_backward_launch.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_512(KernelEntries& entries) {
  add_wide_entries<__nv_bfloat16>(entries, kLarge);
  add_wide_entries<__half>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
