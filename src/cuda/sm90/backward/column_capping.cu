// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_LAUNCH_COLUMNS(Capping<Columns128<__nv_bfloat16, MaskForm::intervals>>);

}  // namespace flashmask::cuda::sm90
