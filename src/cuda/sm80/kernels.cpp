// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include <iterator>

#include "cuda/sm80/backward/backward.h"
#include "cuda/sm80/forward/forward.h"

namespace flashmask::cuda::sm80 {

KernelRows kernels() {
  KernelRows rows = forward_kernels();
  KernelRows backward = backward_kernels();
  rows.insert(rows.end(), std::make_move_iterator(backward.begin()), std::make_move_iterator(backward.end()));
  return rows;
}

}  // namespace flashmask::cuda::sm80
