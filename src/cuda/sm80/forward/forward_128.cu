// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

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

/// Measured with documents of many lengths (docs/journal/short-rows-mma-sync.md).
constexpr WhenSmall kWhenShort{.area = 0.76F, .per_row = 0.85F};

}  // namespace

void add_forward_128(KernelEntries& entries) {
  add_choosing_entries<LargeCode<__nv_bfloat16>, ForwardCode<Short<__nv_bfloat16>>>(entries, kLarge, kWhenShort);
  add_choosing_entries<LargeCode<__half>, ForwardCode<Short<__half>>>(entries, kLarge, kWhenShort);
}

}  // namespace flashmask::cuda::sm80
