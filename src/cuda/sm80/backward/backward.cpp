// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/backward/backward.h"

namespace flashmask::cuda::sm80 {

KernelEntries backward_kernels() {
  KernelEntries entries;
  add_backward_32(entries);
  add_backward_64(entries);
  add_backward_96(entries);
  add_backward_96_compact(entries);
  add_backward_128(entries);
  add_backward_128_compact(entries);
  add_backward_192(entries);
  add_backward_256(entries);
  add_backward_512(entries);
  return entries;
}

}  // namespace flashmask::cuda::sm80
