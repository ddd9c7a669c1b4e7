// SPDX-License-Identifier: Apache-2.0
#include "flashmask/features.h"

#include <array>

namespace flashmask {

std::string to_string(Feature feature) {
  constexpr std::array<const char*, kFeatureCount> kNames = {"dropout",
                                                             "determinism",
                                                             "block maps",
                                                             "sinks",
                                                             "float32 gradients of k and v",
                                                             "softcap",
                                                             "ALiBi",
                                                             "invariance",
                                                             "biases of scores",
                                                             "biases by distance",
                                                             "changes of scores beyond a cap, then a bias",
                                                             "the largest scores of rows",
                                                             "functions of scores"};
  const auto number = static_cast<std::size_t>(feature);
  return number < kNames.size() ? kNames[number] : "feature " + std::to_string(number);
}

Features required(const Problem& problem) {
  // Names every field, so that a new one does not compile until it is decided here what kernels need for it.
  const auto& [batch, query_length, key_length, query_heads, kv_heads, head_dim, value_dim, dtype, device, scale,
               dropout, change] = problem;
  Features needed;
  if (dropout > 0) needed.add(Feature::dropout);
  if (change.cap() > 0 && change.is_cap_and_bias()) needed.add(Feature::softcap);
  if (change.bias() == ScoreBias::alibi) needed.add(Feature::alibi);
  if (change.bias() == ScoreBias::tensor) needed.add(Feature::bias);
  if (change.bias() == ScoreBias::distances) needed.add(Feature::distance_bias);
  if (change.function() != nullptr)
    needed.add(Feature::functions);
  else if (!change.is_cap_and_bias())
    needed.add(Feature::any_change);
  return needed;
}

}  // namespace flashmask
