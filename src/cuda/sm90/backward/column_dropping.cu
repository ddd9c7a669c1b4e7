// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_ALL_COLUMNS(DroppingColumns);

}  // namespace flashmask::cuda::sm90
