// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_shapes.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_DROPPING_FORWARD(, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_DROPPING_FORWARD(, __nv_bfloat16, MaskForm::bits);
FLASHMASK_DROPPING_FORWARD(, __half, MaskForm::intervals);
FLASHMASK_DROPPING_FORWARD(, __half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
