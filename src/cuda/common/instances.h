// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/changes.h"
#include "flashmask/features.h"
#include "flashmask/problem.h"
#include "plan/dropout.h"

/// Which instance of a kernel serves a problem.
namespace flashmask::cuda {

/// Whether a call drops anything; kernels for calls without dropout draw no numbers.
inline bool has_dropout(const Problem& problem) { return dropout_threshold(problem.dropout) != 0; }

inline bool has_score_changes(const Problem& problem) { return !problem.change.steps().empty(); }

/// Whether the kernel of the shape itself serves a problem.
inline bool has_plain_scores(const Problem& problem) { return !has_dropout(problem) && !has_score_changes(problem); }

/// The features of an entry whose kernel has all instances that with_instance() chooses from, but for tensors of
/// biases.
inline constexpr Features kWithoutTensors{Feature::dropout, Feature::softcap, Feature::alibi};
/// With them.
inline constexpr Features kInstanceFeatures = kWithoutTensors | Features{Feature::bias, Feature::distance_bias};

/// The features of an entry whose shape has one kernel.
inline constexpr Features kOneKernelFeatures{Feature::softcap, Feature::alibi, Feature::bias, Feature::distance_bias};

/// Names a shape, to pass it to a function.
template <class Shape_>
struct ShapeName {
  using Shape = Shape_;
};

/// Whether a shape has one kernel, which changes scores where a call asks for it and drops nothing: few calls have
/// heads of so few dims, mostly those with a bias for pairs of residues.
template <class Shape>
inline constexpr bool kHasOneKernel = Shape::kHeadDim <= 32;

/// Calls body(ShapeName<…>) with the instance of Shape that serves a problem.
template <class Shape, class Body>
auto with_instance([[maybe_unused]] const Problem& problem, const Body& body) {
  if constexpr (kHasOneKernel<Shape>) {
    return body(ShapeName<Changing<Shape>>());
  } else {
    if (has_score_changes(problem)) {
      if (has_dropout(problem)) return body(ShapeName<Changing<Dropping<Shape>>>());
      return body(ShapeName<Changing<Shape>>());
    }
    if (has_dropout(problem)) return body(ShapeName<Dropping<Shape>>());
    return body(ShapeName<Shape>());
  }
}

}  // namespace flashmask::cuda
