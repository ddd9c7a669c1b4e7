// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Compact = ForwardShape<T, 96, 96, 1, Queries::registers, 3>;
static_assert(sizeof(ForwardMemory<Compact<__half>>) <= kCompactSharedBytes);

}  // namespace

void add_forward_96_compact(KernelEntries& entries) {
  add_entries<Compact<__nv_bfloat16>>(entries, kCompact);
  add_entries<Compact<__half>>(entries, kCompact);
}

}  // namespace flashmask::cuda::sm80
