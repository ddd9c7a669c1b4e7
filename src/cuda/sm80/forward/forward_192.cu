// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_row.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T, int kValueDim>
using Shape = ForwardShape<T, 192, kValueDim, 1, Queries::staged, 3>;
static_assert(sizeof(ForwardMemory<Shape<__half, 192>>) <= kSmallSharedBytes);

}  // namespace

void add_forward_192(KernelRows& rows) {
  add_rows<Shape<__nv_bfloat16, 128>>(rows, kLarge);
  add_rows<Shape<__half, 128>>(rows, kLarge);
  add_rows<Shape<__nv_bfloat16, 192>>(rows, kLarge);
  add_rows<Shape<__half, 192>>(rows, kLarge);
}

}  // namespace flashmask::cuda::sm80
