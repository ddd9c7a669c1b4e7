// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels.h"

#include "cuda/sm90/backward/backward.h"
#include "cuda/sm90/forward/forward.h"
#include "cuda/sm90/walk/walk.h"

namespace flashmask::cuda::sm90 {

KernelEntries kernels() {
  KernelEntries entries = forward_kernels();
  append(entries, backward_kernels());
  append(entries, linear_kernels());
  return entries;
}

}  // namespace flashmask::cuda::sm90
