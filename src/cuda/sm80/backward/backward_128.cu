// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_launch.cuh"

namespace flashmask::cuda::sm80 {

/// Measured with documents of many lengths (docs/journal/short-rows-mma-sync.md).
constexpr WhenSmall kWhenShort{.area = 0.85F, .per_row = 0.32F};

void add_backward_128(KernelEntries& entries) {
  add_choosing_entries<__nv_bfloat16, 128>(entries, kWhenShort);
  add_choosing_entries<__half, 128>(entries, kWhenShort);
  add_large_entries<128>(entries);
}

}  // namespace flashmask::cuda::sm80
