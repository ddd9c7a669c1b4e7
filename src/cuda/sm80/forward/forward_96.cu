// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Large = ForwardShape<T, 96, 96, 2, Queries::shared, 3>;

}  // namespace

void add_forward_96(KernelEntries& entries) {
  add_entries<Large<__nv_bfloat16>>(entries, kLarge);
  add_entries<Large<__half>>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
