// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward.h"

namespace flashmask::cuda::sm80 {

KernelRows forward_kernels() {
  KernelRows rows;
  add_forward_64(rows);
  add_forward_96(rows);
  add_forward_128(rows);
  add_forward_192(rows);
  add_forward_256(rows);
  add_forward_512(rows);
  return rows;
}

}  // namespace flashmask::cuda::sm80
