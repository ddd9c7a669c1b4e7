// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/mask.h"

/// The masks of published evaluations that are drawn at random. Every call draws the same mask.
namespace flashmask::cli {

/// Longformer's global mask as Binary Block Masking draws it: |i − j| <= 4, and tokens 0, 1 and log₂(tokens) − 2 random
/// ones see and are seen by all.
Mask longformer_global(std::int64_t tokens);

/// A band |i − j| <= half_width with tokens renamed at random.
Mask scrambled_band(std::int64_t tokens, std::int64_t half_width);

/// A grid graph of tokens, each of which sees itself and its four neighbours, renamed at random. The grid is a square
/// or twice as wide as it is high; `tokens` is a power of two.
Mask scrambled_grid(std::int64_t tokens);

/// Symmetric: tokens see themselves, and one another with probability max(½ · exp(−0.3 · |i − j|), 0.0002).
Mask symmetric_random(std::int64_t tokens);

}  // namespace flashmask::cli
