// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_row.cuh"
#include "cuda/sm80/forward/wide_forward_kernel.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
struct WideForwardCode {
  using Shape = WideForwardShape<T>;
  using Memory = WideForwardMemory<Shape>;
  static auto kernel(bool) { return wide_forward_kernel<Shape>; }
  static_assert(sizeof(Memory) <= kLargeSharedBytes);
};

}  // namespace

void add_forward_512(KernelRows& rows) {
  add_rows_of<WideForwardCode<__nv_bfloat16>>(rows, kLarge);
  add_rows_of<WideForwardCode<__half>>(rows, kLarge);
}

}  // namespace flashmask::cuda::sm80
