// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_shapes.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_SUMMING_COLUMNS(, Biasing, __nv_bfloat16, MaskForm::intervals);

}  // namespace flashmask::cuda::sm90
