// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "flashmask/export.h"
#include "flashmask/problem.h"

namespace flashmask {

/// What a call may ask of a kernel besides its sizes, its dtype and the form of its mask.
enum class Feature : std::uint8_t {
  dropout,                ///< dropout of attention probabilities
  deterministic,          ///< the same bits on every run
  block_map,              ///< a block map beside intervals, whose blocks are whole tiles
  sinks,                  ///< logits that take probability and have no value
  float32_key_gradients,  ///< backward only: float32 gradients of k and v for 16-bit tensors
  softcap,                ///< scores that are capped by a tanh
  alibi,                  ///< a bias of scores by distance
  invariant,              ///< the same bits whatever a document is packed with
  bias,                   ///< a bias of scores by a tensor
  distance_bias,          ///< a bias of scores by a table of distances
  any_change,             ///< any other steps of a ScoreChange than a cap, then a bias
  max_scores,             ///< forward only: the largest score of each row
  functions,              ///< a ScoreFunction
};
inline constexpr int kFeatureCount = 13;

/// A set of features: what a kernel has, or what a call needs.
class Features {
 public:
  constexpr Features() = default;
  constexpr Features(std::initializer_list<Feature> all) {
    for (const Feature each : all) add(each);
  }

  constexpr void add(Feature feature) { bits_ |= bit_of(feature); }
  constexpr bool has(Feature feature) const { return (bits_ & bit_of(feature)) != 0; }
  constexpr std::uint32_t bits() const { return bits_; }  ///< bit i: the i-th feature

  friend constexpr Features operator|(Features a, Features b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(Features, Features) = default;

 private:
  static constexpr std::uint32_t bit_of(Feature feature) { return std::uint32_t{1} << static_cast<int>(feature); }

  std::uint32_t bits_ = 0;
};

/// Returns a name such as "dropout"; for a number that no feature has, "feature 31".
FLASHMASK_API std::string to_string(Feature feature);

/// Returns the features that a problem needs of its kernels.
FLASHMASK_API Features required(const Problem& problem);

}  // namespace flashmask
