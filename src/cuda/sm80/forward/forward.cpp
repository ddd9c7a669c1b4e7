// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward.h"

namespace flashmask::cuda::sm80 {

KernelEntries forward_kernels() {
  KernelEntries entries;
  add_forward_32(entries);
  add_forward_64(entries);
  add_forward_96(entries);
  add_forward_96_compact(entries);
  add_forward_128(entries);
  add_forward_128_compact(entries);
  add_forward_192(entries);
  add_forward_256(entries);
  add_forward_256_compact(entries);
  add_forward_512(entries);
  return entries;
}

}  // namespace flashmask::cuda::sm80
