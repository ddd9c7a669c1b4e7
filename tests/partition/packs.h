// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "flashmask/builders.h"
#include "kit/random_numbers.h"

/// Packs as trainers see them, the same on every machine.
namespace flashmask::testing {

/// Documents whose lengths are alike on a scale of powers of two, up to a quarter of the tokens.
inline Mask long_tail(std::int64_t tokens, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0; left -= lengths.back()) {
    std::int64_t most = 64;
    while (most < tokens / 4 && random.below(3) != 0) most *= 2;
    lengths.push_back(std::min(left, most / 2 + random.below(most / 2) + 1));
  }
  return masks::causal_document(lengths, tokens);
}

inline Mask short_documents(std::int64_t tokens, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0; left -= lengths.back())
    lengths.push_back(std::min(left, 20 + random.below(170)));
  return masks::causal_document(lengths, tokens);
}

}  // namespace flashmask::testing
