// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/wide_backward_row.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_512(KernelRows& rows) {
  add_wide_rows<__nv_bfloat16>(rows, kLarge);
  add_wide_rows<__half>(rows, kLarge);
}

}  // namespace flashmask::cuda::sm80
