// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_row.cuh"

namespace flashmask::cuda::sm80 {
namespace {

/// Registers hold 10 of the 16 panels of Q: holding all 16 would leave too few registers.
template <class T>
using Large = ForwardShape<T, 256, 256, 1, Queries::staged, 3, 128, 10>;
template <class T>
using Small = ForwardShape<T, 256, 256, 1, Queries::staged, 2, 128, 10>;
static_assert(sizeof(ForwardMemory<Large<__half>>) <= kLargeSharedBytes);
static_assert(sizeof(ForwardMemory<Small<__half>>) <= kSmallSharedBytes);

}  // namespace

void add_forward_256(KernelRows& rows) {
  add_rows<Large<__nv_bfloat16>>(rows, kLarge);
  add_rows<Large<__half>>(rows, kLarge);
  add_rows<Small<__nv_bfloat16>>(rows, kSmall);
  add_rows<Small<__half>>(rows, kSmall);
}

}  // namespace flashmask::cuda::sm80
