// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

/// Kernel helpers must be inlined into their kernel: an out-of-line copy would be shared between instruction sets.
#define FLASHMASK_INLINE inline __attribute__((always_inline))
#define FLASHMASK_INLINE_LAMBDA __attribute__((always_inline))

namespace flashmask::cpu {

/// A compile-time count or index passed as an argument.
template <int N>
struct Count {
  static constexpr int value = N;
  FLASHMASK_INLINE constexpr operator int() const { return N; }
};

/// Calls body(Count<0>), body(Count<1>), … A loop over a register tile must be written out before the compiler decides
/// what lives in registers; a plain loop is unrolled too late for that.
template <int N, class Body>
FLASHMASK_INLINE void unrolled(Body&& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) FLASHMASK_INLINE_LAMBDA { (body(Count<I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

}  // namespace flashmask::cpu
