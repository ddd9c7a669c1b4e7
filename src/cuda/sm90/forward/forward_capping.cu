// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_FORWARD_INSTANCES(Capping);

}  // namespace flashmask::cuda::sm90
