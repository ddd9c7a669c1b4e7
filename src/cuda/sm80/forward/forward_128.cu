// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_row.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Large = ForwardShape<T, 128, 128, 2, Queries::shared, 2>;
template <class T>
using Roomy = ForwardShape<T, 128, 128, 2, Queries::shared, 3>;
template <class T>
using LargeCode = ForwardCodeWithRoomy<Large<T>, Roomy<T>>;
template <class T>
using Short = ForwardShape<T, 128, 128, 1, Queries::shared, 2, 64>;
template <class T>
using Small = ForwardShape<T, 128, 128, 1, Queries::registers, 3>;
static_assert(sizeof(ForwardMemory<Small<__half>>) <= kSmallSharedBytes);

/// Measured with documents of many lengths (docs/journal/short-rows-mma-sync.md).
constexpr WhenSmall kWhenShort{.area = 0.76F, .per_row = 0.85F};

}  // namespace

void add_forward_128(KernelRows& rows) {
  add_choosing_rows<LargeCode<__nv_bfloat16>, ForwardCode<Short<__nv_bfloat16>>>(rows, kLarge, kWhenShort);
  add_choosing_rows<LargeCode<__half>, ForwardCode<Short<__half>>>(rows, kLarge, kWhenShort);
  add_rows<Small<__nv_bfloat16>>(rows, kSmall);
  add_rows<Small<__half>>(rows, kSmall);
}

}  // namespace flashmask::cuda::sm80
