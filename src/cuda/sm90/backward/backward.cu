// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_ALL_COLUMNS(std::type_identity_t);

}  // namespace flashmask::cuda::sm90
