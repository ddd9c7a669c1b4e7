// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/forward/forward_launch.cuh"

/// The larger tiles of each head dim, without and with dropout. Ping-pong pays where exponentials take as long as
/// products. The numbers of registers are what ptxas needs to avoid spills, builders included.
namespace flashmask::cuda::sm90 {

template <class T, MaskForm kForm>
using Forward64 = ForwardShape<T, kForm, 64, 64, 3, 96, 72, 144, TileOrder::ping_pong>;
template <class T, MaskForm kForm>
using DroppingForward64 = DroppingForwardShape<Forward64<T, kForm>, 72, 144>;

template <class T, MaskForm kForm>
using Forward128 = ForwardShape<T, kForm, 128, 128, 2, 128, 72, 216>;
template <class T, MaskForm kForm>
using DroppingForward128 = DroppingForwardShape<Forward128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192v128 = ForwardShape<T, kForm, 192, 128, 2, 128, 72, 216>;
template <class T, MaskForm kForm>
using DroppingForward192v128 = DroppingForwardShape<Forward192v128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192 = ForwardShape<T, kForm, 192, 192, 2, 96, 72, 216>;
template <class T, MaskForm kForm>
using DroppingForward192 = DroppingForwardShape<Forward192<T, kForm>, 72, 216>;

template <class T, MaskForm kForm>
using Forward256 = ForwardShape<T, kForm, 256, 256, 2, 64, 72, 216>;
template <class T, MaskForm kForm>
using DroppingForward256 = DroppingForwardShape<Forward256<T, kForm>, 56, 224>;

/// Compiled in forward_dropping.cu.
#define FLASHMASK_ATTEND(prefix, shape, T, form) \
  prefix template void attend<shape<T, form>>(const ForwardArguments&, const ForwardTensors&, cudaStream_t)
#define FLASHMASK_DROPPING_FORWARD(prefix, T, form)          \
  FLASHMASK_ATTEND(prefix, DroppingForward64, T, form);      \
  FLASHMASK_ATTEND(prefix, DroppingForward128, T, form);     \
  FLASHMASK_ATTEND(prefix, DroppingForward192v128, T, form); \
  FLASHMASK_ATTEND(prefix, DroppingForward192, T, form);     \
  FLASHMASK_ATTEND(prefix, DroppingForward256, T, form)

FLASHMASK_DROPPING_FORWARD(extern, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_DROPPING_FORWARD(extern, __nv_bfloat16, MaskForm::bits);
FLASHMASK_DROPPING_FORWARD(extern, __half, MaskForm::intervals);
FLASHMASK_DROPPING_FORWARD(extern, __half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
