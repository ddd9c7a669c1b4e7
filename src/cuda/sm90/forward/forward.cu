// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_launch.cuh"

namespace flashmask::cuda::sm90 {

#define FLASHMASK_PLAIN_FORWARD(T, form)              \
  FLASHMASK_LAUNCH_FORWARD(Forward64<T, form>);       \
  FLASHMASK_LAUNCH_FORWARD(ShortForward64<T, form>);  \
  FLASHMASK_LAUNCH_FORWARD(Forward128<T, form>);      \
  FLASHMASK_LAUNCH_FORWARD(ShortForward128<T, form>); \
  FLASHMASK_LAUNCH_FORWARD(Forward192v128<T, form>);  \
  FLASHMASK_LAUNCH_FORWARD(Forward192<T, form>);      \
  FLASHMASK_LAUNCH_FORWARD(Forward256<T, form>)

FLASHMASK_PLAIN_FORWARD(__nv_bfloat16, MaskForm::intervals);
FLASHMASK_PLAIN_FORWARD(__nv_bfloat16, MaskForm::bits);
FLASHMASK_PLAIN_FORWARD(__half, MaskForm::intervals);
FLASHMASK_PLAIN_FORWARD(__half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
