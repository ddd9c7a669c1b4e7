// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/sm90/forward/forward_kernel.cuh"

namespace flashmask::cuda::sm90 {

template <class Shape>
void launch_forward(const ForwardArguments& arguments, const ForwardMaps& maps, int blocks, cudaStream_t stream) {
  const auto start = [&](auto* kernel, const auto&... more) {
    launch<RowMemory<Shape>>("forward", kernel, blocks, Shape::kThreads, stream, maps.q, maps.k, maps.v, maps.o,
                             maps.o_row, arguments, more...);
  };
  if constexpr (CopiesBias<Shape>)
    start(biased_forward_kernel<Shape>, maps.bias);
  else
    start(forward_kernel<Shape>);
}

#define FLASHMASK_LAUNCH_FORWARD(...) \
  template void launch_forward<__VA_ARGS__>(const ForwardArguments&, const ForwardMaps&, int, cudaStream_t)

/// Compiles the instances of the shapes that most calls have.
#define FLASHMASK_COMMON_FORWARD(instance)                                                    \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance64<instance, __nv_bfloat16, MaskForm::intervals>);  \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance128<instance, __nv_bfloat16, MaskForm::intervals>); \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance256<instance, __nv_bfloat16, MaskForm::intervals>)

/// Compiles the instances of all shapes.
#define FLASHMASK_FORWARD_INSTANCES_OF(instance, T, form)              \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance64<instance, T, form>);      \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance128<instance, T, form>);     \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance192v128<instance, T, form>); \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance192<instance, T, form>);     \
  FLASHMASK_LAUNCH_FORWARD(ForwardInstance256<instance, T, form>)
#define FLASHMASK_FORWARD_INSTANCES(instance)                                   \
  FLASHMASK_FORWARD_INSTANCES_OF(instance, __nv_bfloat16, MaskForm::intervals); \
  FLASHMASK_FORWARD_INSTANCES_OF(instance, __nv_bfloat16, MaskForm::bits);      \
  FLASHMASK_FORWARD_INSTANCES_OF(instance, __half, MaskForm::intervals);        \
  FLASHMASK_FORWARD_INSTANCES_OF(instance, __half, MaskForm::bits)

}  // namespace flashmask::cuda::sm90
