// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Shape = ForwardShape<T, 32, 32, 2, Queries::shared, 3>;
static_assert(2 * sizeof(ForwardMemory<Shape<__half>>) <= kCompactSharedBytes);

}  // namespace

void add_forward_32(KernelEntries& entries) {
  add_entries<Shape<__nv_bfloat16>>(entries, kLarge);
  add_entries<Shape<__half>>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
