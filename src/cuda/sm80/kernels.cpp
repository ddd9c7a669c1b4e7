#include "cuda/sm80/kernels.h"

#include "cuda/sm80/forward/forward.h"

namespace flashmask::cuda::sm80 {

KernelRows kernels() { return forward_kernels(); }

}  // namespace flashmask::cuda::sm80
