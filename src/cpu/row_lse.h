// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "cpu/compiler.h"

namespace flashmask::cpu {

/// Returns what a row's scores, as powers of two, lose to become its probabilities: the lse of the forward, in powers
/// of two, or +∞ where the row sees nothing, so that its probabilities are 0. An lse so large that float32 rounds it
/// and the scores apart is raised, so that no probability exceeds 1. Both are right to 2^−21 of their size: from 2^20
/// on that is a factor of √2 and more, and the log of the row's sum is lost.
FLASHMASK_INLINE float lse_in_powers_of_two(float lse) {
  constexpr float kLog2E = 1.44269504088896340736f, kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLarge = 1 << 20, kRounding = 0x1p-21f;
  if (lse == -kInfinity) return kInfinity;
  const float lse2 = lse * kLog2E, size = lse2 < 0.0f ? -lse2 : lse2;
  return size < kLarge ? lse2 : lse2 + size * kRounding;
}

}  // namespace flashmask::cpu
