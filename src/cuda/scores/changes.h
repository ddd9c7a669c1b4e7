// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a call may want done to scores and probabilities besides the softmax, and which instance of a kernel does it.
/// Kernels ask Drops<Shape>, and ChangesScores<Shape> where one instance makes all changes that calls often
/// ask for or Caps<Shape>, Biases<Shape> and AddsBias<Shape> where each has its own, and Changes<Shape> where a kernel
/// is compiled for a change of its own (cuda/compile). A shape that says nothing does none of it.
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

/// Whether the kernel also writes the largest score of each row, where a call gives room for it. It asks at run time
/// whether a call drops anything.
template <class Shape>
concept KeepsMaxScores = requires {
  requires Shape::kMaxScores;
};

/// Whether the kernel is compiled with a change of scores, struct Change (cuda/compile).
template <class Shape>
concept Changes = requires {
  typename Shape::Change;
};

/// Whether warps that compute scores need the head, row and column of each.
template <class Shape>
inline constexpr bool kLocatesScores = Drops<Shape> || AddsBias<Shape> || Changes<Shape>;

/// Whether the copy engine brings a bias of each score to shared memory, panel by panel, where it can read it.
template <class Shape>
concept CopiesBias = AddsBias<Shape> && requires {
  requires(Shape::kBiasSlots > 0);
};

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

/// The shape of the kernel that is compiled with a change of scores, whose text is Change_.
template <class Shape, class Change_>
struct Changed : Shape {
  using Change = Change_;
};

/// The shape of the kernel that keeps the largest scores.
template <class Shape>
struct Maximizing : Shape {
  static constexpr bool kMaxScores = true;
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

}  // namespace flashmask::cuda
