// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/sm90/backward/column_kernel.cuh"

namespace flashmask::cuda::sm90 {

template <class Shape>
void launch_columns(const ColumnArguments& arguments, const ColumnMaps& maps, int blocks, cudaStream_t stream) {
  const auto start = [&](auto* kernel, const auto&... more) {
    launch<ColumnMemory<Shape>>("backward: columns", kernel, blocks, Shape::kThreads, stream, maps.q, maps.k, maps.v,
                                maps.grad_o, maps.o_quarters, maps.grad_o_quarters, arguments, more...);
  };
  if constexpr (CopiesBias<Shape>)
    start(biased_column_kernel<Shape>, maps.bias);
  else
    start(column_kernel<Shape>);
}

#define FLASHMASK_LAUNCH_COLUMNS(...) \
  template void launch_columns<__VA_ARGS__>(const ColumnArguments&, const ColumnMaps&, int, cudaStream_t)

/// Compiles all shapes, or their instances.
#define FLASHMASK_ALL_COLUMNS_OF(Instance, T, form)                   \
  FLASHMASK_LAUNCH_COLUMNS(Instance<Columns64<T, form>>);             \
  FLASHMASK_LAUNCH_COLUMNS(Instance<Columns128<T, form>>);            \
  FLASHMASK_LAUNCH_COLUMNS(Instance<CarriedColumns64<T, form>>);      \
  FLASHMASK_LAUNCH_COLUMNS(Instance<CarriedColumns128<T, form>>);     \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideKeyColumns<T, form, 192>>);   \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideValueColumns<T, form, 192>>); \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideKeyColumns<T, form, 256>>);   \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideValueColumns<T, form, 256>>)
#define FLASHMASK_ALL_COLUMNS(Instance)                                   \
  FLASHMASK_ALL_COLUMNS_OF(Instance, __nv_bfloat16, MaskForm::intervals); \
  FLASHMASK_ALL_COLUMNS_OF(Instance, __nv_bfloat16, MaskForm::bits);      \
  FLASHMASK_ALL_COLUMNS_OF(Instance, __half, MaskForm::intervals);        \
  FLASHMASK_ALL_COLUMNS_OF(Instance, __half, MaskForm::bits)

/// Compiles instances of the shapes with sums that most calls have.
#define FLASHMASK_COMMON_COLUMNS(Instance)                                           \
  FLASHMASK_LAUNCH_COLUMNS(Instance<Columns64<__nv_bfloat16, MaskForm::intervals>>); \
  FLASHMASK_LAUNCH_COLUMNS(Instance<Columns128<__nv_bfloat16, MaskForm::intervals>>)

/// Compiles instances of the shapes without sums that most calls have.
#define FLASHMASK_COMMON_PASSES(Instance)                                                      \
  FLASHMASK_LAUNCH_COLUMNS(Instance<CarriedColumns64<__nv_bfloat16, MaskForm::intervals>>);    \
  FLASHMASK_LAUNCH_COLUMNS(Instance<CarriedColumns128<__nv_bfloat16, MaskForm::intervals>>);   \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideKeyColumns<__nv_bfloat16, MaskForm::intervals, 256>>); \
  FLASHMASK_LAUNCH_COLUMNS(Instance<WideValueColumns<__nv_bfloat16, MaskForm::intervals, 256>>)

}  // namespace flashmask::cuda::sm90
