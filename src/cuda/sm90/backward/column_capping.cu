// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_COMMON_COLUMNS(Capping);
FLASHMASK_COMMON_PASSES(Capping);

}  // namespace flashmask::cuda::sm90
