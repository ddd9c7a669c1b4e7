#include "cuda/sm90/kernels.h"
#include "plan/kernel.h"

namespace flashmask {

KernelRows cuda_kernels() { return cuda::sm90::kernels(); }

}  // namespace flashmask
