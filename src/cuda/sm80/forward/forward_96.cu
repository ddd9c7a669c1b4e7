// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_row.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Large = ForwardShape<T, 96, 96, 2, Queries::shared, 3>;
template <class T>
using Small = ForwardShape<T, 96, 96, 1, Queries::registers, 3>;
static_assert(sizeof(ForwardMemory<Small<__half>>) <= kSmallSharedBytes);

}  // namespace

void add_forward_96(KernelRows& rows) {
  add_rows<Large<__nv_bfloat16>>(rows, kLarge);
  add_rows<Large<__half>>(rows, kLarge);
  add_rows<Small<__nv_bfloat16>>(rows, kSmall);
  add_rows<Small<__half>>(rows, kSmall);
}

}  // namespace flashmask::cuda::sm80
