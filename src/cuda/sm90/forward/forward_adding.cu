// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_COMMON_FORWARD(Adding);

}  // namespace flashmask::cuda::sm90
