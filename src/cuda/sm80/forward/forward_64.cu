// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Shape = ForwardShape<T, 64, 64, 2, Queries::registers, 3>;
template <class T>
using Short = ForwardShape<T, 64, 64, 1, Queries::registers, 3, 64>;
static_assert(2 * sizeof(ForwardMemory<Shape<__half>>) <= kCompactSharedBytes);

/// Measured with documents of many lengths (docs/journal/short-rows-mma-sync.md).
constexpr WhenSmall kWhenShort{.area = 0.87F, .per_row = 1.2F};

}  // namespace

void add_forward_64(KernelEntries& entries) {
  add_choosing_entries<ForwardCode<Shape<__nv_bfloat16>>, ForwardCode<Short<__nv_bfloat16>>>(entries, kLarge,
                                                                                             kWhenShort);
  add_choosing_entries<ForwardCode<Shape<__half>>, ForwardCode<Short<__half>>>(entries, kLarge, kWhenShort);
}

}  // namespace flashmask::cuda::sm80
