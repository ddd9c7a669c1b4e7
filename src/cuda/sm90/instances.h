// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/common/instances.h"
#include "flashmask/features.h"
#include "flashmask/mask_shape.h"

/// Which instances Hopper's kernels have. Each drops probabilities, caps scores, or biases them by ALiBi or by a
/// tensor: none does two of these.
namespace flashmask::cuda::sm90 {

/// Which shapes have kernels that bias scores, and in the backward kernels that cap them: those of most calls, as a
/// kernel takes 30 kB of the library. mma.sync's kernels serve the others.
template <class Shape>
inline constexpr bool kIsCommon = std::is_same_v<typename Shape::Element, __nv_bfloat16>&& Shape::kForm ==
                                  MaskForm::intervals&& Shape::kHeadDim != 192;

/// The head dim up to which mma.sync's kernels, which hold more of a bias at once, add a value to each score faster.
inline constexpr int kNarrow = 64;

/// What an instance is taken for.
template <class Instance>
constexpr Features features_of() {
  if constexpr (Drops<Instance>) return {Feature::dropout};
  if constexpr (Caps<Instance>) return {Feature::softcap};
  if constexpr (Biases<Instance>) return {Feature::alibi};
  if constexpr (AddsBias<Instance> && Instance::kHeadDim > kNarrow) return {Feature::bias, Feature::distance_bias};
  if constexpr (AddsBias<Instance>) return {Feature::distance_bias};
  return {};
}

/// Whether an instance serves a problem, which wants at most one of these things.
template <class Instance>
bool serves(const Problem& problem) {
  if constexpr (Drops<Instance>) return has_dropout(problem);
  if constexpr (Caps<Instance>) return problem.change.cap() > 0;
  if constexpr (Biases<Instance>) return problem.change.bias() == ScoreBias::alibi;
  if constexpr (AddsBias<Instance>) return has_bias_tensor(problem);
  return has_plain_scores(problem);
}

/// A shape and its instances.
template <class Shape_, class... Others>
struct Instances {
  using Shape = Shape_;
  static constexpr Features kFeatures = (Features() | ... | features_of<Others>());

  /// Calls body(ShapeName<…>) with the instance that serves a problem, or else with the shape itself.
  template <class Body>
  static void with_one_for(const Problem& problem, const Body& body) {
    const bool found = ((serves<Others>(problem) && (body(ShapeName<Others>()), true)) || ...);
    if (!found) body(ShapeName<Shape>());
  }
};

}  // namespace flashmask::cuda::sm90
