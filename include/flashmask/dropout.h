#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"

namespace flashmask {

/// What the random numbers of one call depend on: the same state repeats a run, and the backward takes the state of
/// its forward.
struct DropoutState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< below 2^32; a training loop counts it up

  friend bool operator==(const DropoutState&, const DropoutState&) = default;
};

/// Which probabilities of Problem::dropout survive, [batch, query_heads, query_length, key_length], 1 = kept, for
/// reference and tests. A decision is a pure function of (seed, offset, batch, query head, row, column): Philox
/// 4×32-10 (Salmon et al. 2011) with the seed as key and (column / 8, row, batch · query_heads + head, offset) as
/// counter gives eight 16-bit numbers for eight columns; those at or above round(dropout · 65536) are kept.
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state);

/// One query row of it, [key_length].
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                                       std::int64_t batch, std::int64_t head, std::int64_t row);

/// What a kept probability is multiplied by: 1 / (1 − round(dropout · 65536) / 65536).
FLASHMASK_API double dropout_scale(double dropout);

/// What each probability is multiplied by, 0 or dropout_scale(): reference::Inputs::dropout. Empty without dropout.
FLASHMASK_API std::vector<double> dropout_factors(const Problem& problem, const DropoutState& state);

}  // namespace flashmask
