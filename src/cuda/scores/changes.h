// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/dropout.h"
#include "flashmask/features.h"
#include "flashmask/problem.h"

/// What a call may want done to scores and probabilities besides the softmax, and which instance of a kernel does it.
/// Kernels ask Drops<Shape>, and ChangesScores<Shape> where one instance makes all changes or Caps<Shape>,
/// Biases<Shape> and AddsBias<Shape> where each has its own. A shape that says nothing does none of it.
namespace flashmask::cuda {

template <class Shape>
concept Drops = requires {
  requires Shape::kDropout;
};
template <class Shape>
concept ChangesScores = requires {
  requires Shape::kScoreChanges;
};
template <class Shape>
concept Caps = requires {
  requires Shape::kSoftcap;
};
template <class Shape>
concept Biases = requires {
  requires Shape::kAlibi;
};

template <class Shape>
concept AddsBias = requires {
  requires Shape::kBiasTensor;
};

/// Whether those who compute scores look up where in the sequence they lie, and for which head.
template <class Shape>
inline constexpr bool kLocatesScores = Drops<Shape> || AddsBias<Shape>;

/// Whether a tile's producer writes what biases scores beside the tile.
template <class Shape>
inline constexpr bool kWritesBiases = Biases<Shape> || AddsBias<Shape>;

/// The shape of the kernel that drops probabilities.
template <class Shape>
struct Dropping : Shape {
  static constexpr bool kDropout = true;
};

/// The shape of the kernel that changes scores as change_scores() does.
template <class Shape>
struct Changing : Shape {
  static constexpr bool kScoreChanges = true;
};

/// The shapes of the kernel that caps scores, of the one that biases them as ALiBi does, and of the one that adds a
/// bias tensor; none does two of these.
template <class Shape>
struct Capping : Shape {
  static constexpr bool kSoftcap = true;
};
template <class Shape>
struct Biasing : Shape {
  static constexpr bool kAlibi = true;
};
template <class Shape>
struct Adding : Shape {
  static constexpr bool kBiasTensor = true;
};

inline bool has_score_changes(const Problem& problem) {
  return problem.change.cap() > 0 || problem.change.bias() != ScoreBias::none;
}

/// Whether the kernel of the shape itself serves a problem.
inline bool has_plain_scores(const Problem& problem) { return !has_dropout(problem) && !has_score_changes(problem); }

/// The features of an entry whose kernel has all instances that with_instance() chooses from, but for tensors of
/// biases.
inline constexpr Features kWithoutTensors{Feature::dropout, Feature::softcap, Feature::alibi};
/// With them.
inline constexpr Features kInstanceFeatures = kWithoutTensors | Features{Feature::bias, Feature::distance_bias};

/// Names a shape, to pass it to a function.
template <class Shape_>
struct ShapeName {
  using Shape = Shape_;
};

/// Calls body(ShapeName<…>) with the instance of Shape that serves a problem.
template <class Shape, class Body>
auto with_instance(const Problem& problem, const Body& body) {
  if (has_score_changes(problem)) {
    if (has_dropout(problem)) return body(ShapeName<Changing<Dropping<Shape>>>());
    return body(ShapeName<Changing<Shape>>());
  }
  if (has_dropout(problem)) return body(ShapeName<Dropping<Shape>>());
  return body(ShapeName<Shape>());
}

}  // namespace flashmask::cuda
