// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

/// Registers hold 10 of the 16 panels of Q, as in forward_256.cu.
template <class T>
using Compact = ForwardShape<T, 256, 256, 1, Queries::staged, 2, 128, 10>;
static_assert(sizeof(ForwardMemory<Compact<__half>>) <= kCompactSharedBytes);

}  // namespace

void add_forward_256_compact(KernelEntries& entries) {
  add_entries<Compact<__nv_bfloat16>>(entries, kCompact);
  add_entries<Compact<__half>>(entries, kCompact);
}

}  // namespace flashmask::cuda::sm80
