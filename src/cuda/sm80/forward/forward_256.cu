// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

/// Registers hold 10 of the 16 panels of Q: holding all 16 would leave too few registers.
template <class T>
using Large = ForwardShape<T, 256, 256, 1, Queries::staged, 3, 128, 10>;
static_assert(sizeof(ForwardMemory<Large<__half>>) <= kLargeSharedBytes);

}  // namespace

void add_forward_256(KernelEntries& entries) {
  add_entries<Large<__nv_bfloat16>>(entries, kLarge);
  add_entries<Large<__half>>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
