// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward.h"

namespace flashmask::cuda::sm80 {

KernelRows backward_kernels() {
  KernelRows rows;
  add_backward_64(rows);
  add_backward_96(rows);
  add_backward_128(rows);
  add_backward_192(rows);
  add_backward_256(rows);
  add_backward_512(rows);
  return rows;
}

}  // namespace flashmask::cuda::sm80
