// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/changed_shapes.h"
#include "cuda/sm90/forward/forward_launch.cuh"

/// The larger tiles of each head dim, and their instances that drop or change scores. Ping-pong pays where exponentials
/// take as long as products. The numbers of registers are what ptxas needs to avoid spills, builders included.
namespace flashmask::cuda::sm90 {

template <class T, MaskForm kForm>
using Forward64 = ForwardShape<T, kForm, 64, 64, 3, 96, 72, 144, TileOrder::ping_pong>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance64 =
    ForwardInstance<Instance, Forward64<T, kForm>, kWritesBiases<Instance<Forward64<T, kForm>>> ? 56 : 72,
                    kWritesBiases<Instance<Forward64<T, kForm>>> ? 152 : 144>;

template <class T, MaskForm kForm>
using Forward128 = ForwardShape<T, kForm, 128, 128, 2, 128, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance128 = ForwardInstance<Instance, Forward128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192v128 = ForwardShape<T, kForm, 192, 128, 2, 128, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance192v128 = ForwardInstance<Instance, Forward192v128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192 = ForwardShape<T, kForm, 192, 192, 2, 96, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance192 = ForwardInstance<Instance, Forward192<T, kForm>, 72, 216>;

template <class T, MaskForm kForm>
using Forward256 = ForwardShape<T, kForm, 256, 256, 2, 64, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance256 = ForwardInstance<Instance, Forward256<T, kForm>, 56, 224>;

/// Compiled in forward_dropping.cu, forward_capping.cu, forward_biasing.cu and forward_adding.cu.
#define FLASHMASK_ATTEND(prefix, shape, instance, T, form) \
  prefix template void attend<shape<instance, T, form>>(const ForwardArguments&, const ForwardTensors&, cudaStream_t)
#define FLASHMASK_FORWARD_OF(prefix, instance, T, form)                \
  FLASHMASK_ATTEND(prefix, ForwardInstance64, instance, T, form);      \
  FLASHMASK_ATTEND(prefix, ForwardInstance128, instance, T, form);     \
  FLASHMASK_ATTEND(prefix, ForwardInstance192v128, instance, T, form); \
  FLASHMASK_ATTEND(prefix, ForwardInstance192, instance, T, form);     \
  FLASHMASK_ATTEND(prefix, ForwardInstance256, instance, T, form)
#define FLASHMASK_FORWARD_INSTANCES(prefix, instance)                         \
  FLASHMASK_FORWARD_OF(prefix, instance, __nv_bfloat16, MaskForm::intervals); \
  FLASHMASK_FORWARD_OF(prefix, instance, __nv_bfloat16, MaskForm::bits);      \
  FLASHMASK_FORWARD_OF(prefix, instance, __half, MaskForm::intervals);        \
  FLASHMASK_FORWARD_OF(prefix, instance, __half, MaskForm::bits)

FLASHMASK_FORWARD_INSTANCES(extern, Dropping);
#define FLASHMASK_COMMON_FORWARD(prefix, instance)                                            \
  FLASHMASK_ATTEND(prefix, ForwardInstance64, instance, __nv_bfloat16, MaskForm::intervals);  \
  FLASHMASK_ATTEND(prefix, ForwardInstance128, instance, __nv_bfloat16, MaskForm::intervals); \
  FLASHMASK_ATTEND(prefix, ForwardInstance256, instance, __nv_bfloat16, MaskForm::intervals)
FLASHMASK_FORWARD_INSTANCES(extern, Capping);
FLASHMASK_COMMON_FORWARD(extern, Biasing);
FLASHMASK_COMMON_FORWARD(extern, Adding);

}  // namespace flashmask::cuda::sm90
