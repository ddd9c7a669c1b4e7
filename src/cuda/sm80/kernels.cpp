// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include "cuda/sm80/backward/backward.h"
#include "cuda/sm80/forward/forward.h"
#include "cuda/sm80/walk/walk.h"

namespace flashmask::cuda::sm80 {

KernelEntries kernels() {
  KernelEntries entries = forward_kernels();
  append(entries, backward_kernels());
  append(entries, linear_kernels());
  return entries;
}

}  // namespace flashmask::cuda::sm80
