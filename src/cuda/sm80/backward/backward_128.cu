// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward_row.cuh"

namespace flashmask::cuda::sm80 {

/// Measured with documents of many lengths (docs/journal/short-rows-mma-sync.md).
constexpr WhenSmall kWhenShort{.area = 0.85F, .per_row = 0.32F};

void add_backward_128(KernelRows& rows) {
  add_choosing_rows<__nv_bfloat16, 128>(rows, kWhenShort);
  add_choosing_rows<__half, 128>(rows, kWhenShort);
  add_large_rows<128>(rows);
  add_small_rows<128>(rows);
}

}  // namespace flashmask::cuda::sm80
