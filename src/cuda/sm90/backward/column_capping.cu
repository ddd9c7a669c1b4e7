// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

FLASHMASK_COMMON_COLUMNS(Capping);
FLASHMASK_LAUNCH_COLUMNS(Capping<CarriedColumns64<__nv_bfloat16, MaskForm::intervals>>);
FLASHMASK_LAUNCH_COLUMNS(Capping<CarriedColumns128<__nv_bfloat16, MaskForm::intervals>>);
FLASHMASK_LAUNCH_COLUMNS(Capping<WideKeyColumns<__nv_bfloat16, MaskForm::intervals, 256>>);
FLASHMASK_LAUNCH_COLUMNS(Capping<WideValueColumns<__nv_bfloat16, MaskForm::intervals, 256>>);

}  // namespace flashmask::cuda::sm90
