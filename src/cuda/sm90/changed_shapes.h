// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "flashmask/features.h"
#include "flashmask/mask.h"

namespace flashmask::cuda::sm90 {

/// Which shapes have kernels that bias scores, and in the backward kernels that cap them: those of most calls, as a
/// kernel takes 30 kB of the library. mma.sync's kernels serve the others.
template <class Shape>
inline constexpr bool kIsCommon = std::is_same_v<typename Shape::Element, __nv_bfloat16>&& Shape::kForm ==
                                  MaskForm::intervals&& Shape::kHeadDim != 192;

/// The head dim up to which mma.sync's kernels, which hold more of a bias at once, add a value to each score faster.
inline constexpr int kNarrow = 64;

/// What Adding<Shape>'s kernel is taken for.
template <class Shape>
inline constexpr Features kAddedBiases =
    Shape::kHeadDim > kNarrow ? Features{Feature::bias, Feature::distance_bias} : Features{Feature::distance_bias};

}  // namespace flashmask::cuda::sm90
