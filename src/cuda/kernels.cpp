#include <iterator>

#include "cuda/sm90/backward.h"
#include "cuda/sm90/forward.h"
#include "plan/kernel.h"

namespace flashmask {

KernelRows cuda_kernels() {
  KernelRows rows = cuda::sm90::forward_kernels();
  KernelRows backward = cuda::sm90::backward_kernels();
  rows.insert(rows.end(), std::make_move_iterator(backward.begin()), std::make_move_iterator(backward.end()));
  return rows;
}

}  // namespace flashmask
