// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include "cpu/compiler.h"

namespace flashmask::cpu {

/// Measures the operations per second (a multiply and an add are two) of Isa::dot on registers alone: the most that a
/// kernel can reach on this core at its current clock. Takes well under a millisecond.
template <class Isa>
double dot_rate() {
  constexpr int kChains = 12;
  constexpr int kRepeats = 1500;
  double seconds = 1;
  for (int attempt = 0; attempt < 8; ++attempt) {
    typename Isa::Vec acc[kChains];
    typename Isa::Vec one = Isa::broadcast(0.0f);
    // Opaque to the compiler, or it would see equal chains and keep one.
    unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA {
      acc[i] = Isa::broadcast(0.0f);
      Isa::make_opaque(acc[i]);
    });
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA { acc[i] = Isa::dot(acc[i], one, one); });
      Isa::make_opaque(one);
    }
    unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA { Isa::make_opaque(acc[i]); });
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double taken =
        static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    seconds = taken < seconds ? taken : seconds;
  }
  return 2.0 * Isa::step * Isa::lanes * kChains * kRepeats / seconds;
}

}  // namespace flashmask::cpu
