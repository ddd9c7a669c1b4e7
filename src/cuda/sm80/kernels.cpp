// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include <iterator>

#include "cuda/sm80/backward/backward.h"
#include "cuda/sm80/forward/forward.h"

namespace flashmask::cuda::sm80 {

KernelEntries kernels() {
  KernelEntries entries = forward_kernels();
  KernelEntries backward = backward_kernels();
  entries.insert(entries.end(), std::make_move_iterator(backward.begin()), std::make_move_iterator(backward.end()));
  return entries;
}

}  // namespace flashmask::cuda::sm80
