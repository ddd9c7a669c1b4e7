// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_COMMON_COLUMNS(Biasing);
FLASHMASK_COMMON_PASSES(Biasing);

}  // namespace flashmask::cuda::sm90
