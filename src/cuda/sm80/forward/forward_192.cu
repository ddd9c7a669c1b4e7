// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T, int kValueDim>
using Shape = ForwardShape<T, 192, kValueDim, 1, Queries::staged, 3>;
static_assert(sizeof(ForwardMemory<Shape<__half, 192>>) <= kCompactSharedBytes);

}  // namespace

void add_forward_192(KernelEntries& entries) {
  add_entries<Shape<__nv_bfloat16, 128>>(entries, kLarge);
  add_entries<Shape<__half, 128>>(entries, kLarge);
  add_entries<Shape<__nv_bfloat16, 192>>(entries, kLarge);
  add_entries<Shape<__half, 192>>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
