// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "flashmask/mask.h"

namespace flashmask::cuda::sm90 {

/// Which shapes have kernels that bias scores, and in the backward kernels that cap them: those of most calls, as a
/// kernel takes 30 kB of the library. mma.sync's kernels serve the others.
template <class Shape>
inline constexpr bool kIsCommon = std::is_same_v<typename Shape::Element, __nv_bfloat16>&& Shape::kForm ==
                                  MaskForm::intervals&& Shape::kHeadDim != 192;

}  // namespace flashmask::cuda::sm90
