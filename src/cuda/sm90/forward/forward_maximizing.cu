// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_launch.cuh"

namespace flashmask::cuda::sm90 {

#define FLASHMASK_MAXIMIZING_FORWARD(T, form)                            \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<Forward64<T, form>>);       \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<ShortForward64<T, form>>);  \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<Forward128<T, form>>);      \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<ShortForward128<T, form>>); \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<Forward192v128<T, form>>);  \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<Forward192<T, form>>);      \
  FLASHMASK_LAUNCH_FORWARD(MaximizingForward<Forward256<T, form>>)

FLASHMASK_MAXIMIZING_FORWARD(__nv_bfloat16, MaskForm::intervals);
FLASHMASK_MAXIMIZING_FORWARD(__nv_bfloat16, MaskForm::bits);
FLASHMASK_MAXIMIZING_FORWARD(__half, MaskForm::intervals);
FLASHMASK_MAXIMIZING_FORWARD(__half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
