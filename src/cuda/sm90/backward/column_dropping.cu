// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_shapes.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_DROPPING_COLUMNS(, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_DROPPING_COLUMNS(, __nv_bfloat16, MaskForm::bits);
FLASHMASK_DROPPING_COLUMNS(, __half, MaskForm::intervals);
FLASHMASK_DROPPING_COLUMNS(, __half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
