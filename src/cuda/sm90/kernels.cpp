// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels.h"

#include <iterator>

#include "cuda/sm90/backward/backward.h"
#include "cuda/sm90/forward/forward.h"

namespace flashmask::cuda::sm90 {

KernelRows kernels() {
  KernelRows rows = forward_kernels();
  KernelRows backward = backward_kernels();
  rows.insert(rows.end(), std::make_move_iterator(backward.begin()), std::make_move_iterator(backward.end()));
  return rows;
}

}  // namespace flashmask::cuda::sm90
