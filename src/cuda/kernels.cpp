#include "cuda/sm90/forward.h"
#include "dispatch/kernel.h"

namespace flashmask {

KernelRows cuda_kernels() { return cuda::sm90::forward_kernels(); }

}  // namespace flashmask
