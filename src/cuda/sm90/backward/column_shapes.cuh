// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/backward/column_launch.cuh"
#include "cuda/sm90/changed_shapes.h"

namespace flashmask::cuda::sm90 {

/// Shapes that sum the gradient of q.
template <class T, MaskForm kForm>
using Columns64 = ColumnShape<T, kForm, 64, 128, false, true, 24, 240>;
template <class T, MaskForm kForm>
using Columns128 = ColumnShape<T, kForm, 128, 64, true, true, 24, 240>;

/// Shapes without the gradient of q.
template <class T, MaskForm kForm>
using CarriedColumns64 = CarriedColumnShape<T, kForm, 64, 128, 2>;
template <class T, MaskForm kForm>
using CarriedColumns128 = CarriedColumnShape<T, kForm, 128, 64, 3>;

/// Wide heads: the gradients of k and v take a pass each.
template <class T, MaskForm kForm, int kHeadDim>
using WideKeys = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, true, false>;
template <class T, MaskForm kForm, int kHeadDim>
using WideValues = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, false, true>;

/// The shape with the same tile for problems with dropout. Its sums are not delayed: there are too few registers.
template <class Shape>
struct WithDropout {
  using Type = Dropping<Shape>;
};
template <class T, MaskForm kForm, int kHeadDim, int kRows, int kProducers, int kConsumers>
struct WithDropout<ColumnShape<T, kForm, kHeadDim, kRows, true, true, kProducers, kConsumers>> {
  using Type = Dropping<ColumnShape<T, kForm, kHeadDim, kRows, false, true, kProducers, kConsumers>>;
};

/// Compiled in column_dropping.cu, column_capping.cu, column_biasing.cu and column_adding.cu.
#define FLASHMASK_LAUNCH_COLUMNS_OF(prefix, ...)                                                                  \
  prefix template void launch_columns<__VA_ARGS__>(const Plan&, const BackwardTensors&, const BackwardWorkspace&, \
                                                   const TileChoice&, const KernelExecution&, int*)
#define FLASHMASK_LAUNCH_COLUMNS(prefix, ...) FLASHMASK_LAUNCH_COLUMNS_OF(prefix, WithDropout<__VA_ARGS__>::Type)
#define FLASHMASK_DROPPING_COLUMNS(prefix, T, form)             \
  FLASHMASK_LAUNCH_COLUMNS(prefix, Columns64<T, form>);         \
  FLASHMASK_LAUNCH_COLUMNS(prefix, Columns128<T, form>);        \
  FLASHMASK_LAUNCH_COLUMNS(prefix, CarriedColumns64<T, form>);  \
  FLASHMASK_LAUNCH_COLUMNS(prefix, CarriedColumns128<T, form>); \
  FLASHMASK_LAUNCH_COLUMNS(prefix, WideKeys<T, form, 192>);     \
  FLASHMASK_LAUNCH_COLUMNS(prefix, WideValues<T, form, 192>);   \
  FLASHMASK_LAUNCH_COLUMNS(prefix, WideKeys<T, form, 256>);     \
  FLASHMASK_LAUNCH_COLUMNS(prefix, WideValues<T, form, 256>)

FLASHMASK_DROPPING_COLUMNS(extern, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_DROPPING_COLUMNS(extern, __nv_bfloat16, MaskForm::bits);
FLASHMASK_DROPPING_COLUMNS(extern, __half, MaskForm::intervals);
FLASHMASK_DROPPING_COLUMNS(extern, __half, MaskForm::bits);

/// Whether a shape has a kernel that caps scores, and one that biases them: those with sums, as the pass for the
/// gradient of q has no registers for either. Nor have sums at 64 dims for a cap.
template <class Shape>
inline constexpr bool kHasBiasing = Shape::kSums&& kIsCommon<Shape>;
template <class Shape>
inline constexpr bool kHasCapping = kHasBiasing<Shape>&& Shape::kHeadDim > 64;

#define FLASHMASK_CAPPING_COLUMNS(prefix, T, form) FLASHMASK_LAUNCH_COLUMNS_OF(prefix, Capping<Columns128<T, form>>)
#define FLASHMASK_SUMMING_COLUMNS(prefix, instance, T, form)         \
  FLASHMASK_LAUNCH_COLUMNS_OF(prefix, instance<Columns64<T, form>>); \
  FLASHMASK_LAUNCH_COLUMNS_OF(prefix, instance<Columns128<T, form>>)

FLASHMASK_CAPPING_COLUMNS(extern, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_SUMMING_COLUMNS(extern, Biasing, __nv_bfloat16, MaskForm::intervals);
FLASHMASK_SUMMING_COLUMNS(extern, Adding, __nv_bfloat16, MaskForm::intervals);

}  // namespace flashmask::cuda::sm90
