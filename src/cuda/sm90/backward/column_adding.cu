// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_COMMON_COLUMNS(AddingColumns);

}  // namespace flashmask::cuda::sm90
