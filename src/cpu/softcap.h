// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/compiler.h"
#include "cpu/kernel_tasks.h"

namespace flashmask::cpu {

/// tanh(x) ≈ x · P(x²) / Q(x²) for |x| ≤ 9, beyond which tanh rounds to 1: minimax in the relative error, which is
/// 2.1e-8 before rounding.
inline constexpr float kTanhP[] = {9.99999979e-01f, 1.33810214e-01f, 3.49558308e-03f, 2.06090005e-05f, 1.33545521e-08f};
inline constexpr float kTanhQ[] = {1.0f, 4.67143370e-01f, 2.58769630e-02f, 3.28562661e-04f, 7.77651259e-07f};

/// What a softcap does to scores: a product x of a query and a key becomes cap · tanh(x · scale / cap).
template <class Isa>
class Softcap {
  using Vec = typename Isa::Vec;

 public:
  FLASHMASK_INLINE explicit Softcap(const HeadSizes& sizes)
      : to_cap_(sizes.softcap > 0.0f ? sizes.scale / sizes.softcap : 0.0f),
        scale_(sizes.softcap > 0.0f ? sizes.softcap : sizes.scale) {}

  FLASHMASK_INLINE bool caps() const { return to_cap_ != 0.0f; }
  /// The factor that turns bounded(x), or x where nothing is capped, into a score.
  FLASHMASK_INLINE float scale() const { return scale_; }

  /// Returns tanh(x · scale / cap).
  FLASHMASK_INLINE Vec bounded(Vec x) const {
    x = Isa::mul(x, Isa::broadcast(to_cap_));
    x = Isa::min(Isa::broadcast(9.0f), Isa::max(Isa::broadcast(-9.0f), x));  // this order of operands keeps a NaN
    const Vec z = Isa::mul(x, x);
    return Isa::div(Isa::mul(x, polynomial(kTanhP, z)), polynomial(kTanhQ, z));
  }
  /// Returns the derivative of a score by x · scale, from bounded(x).
  static FLASHMASK_INLINE Vec slope(Vec bounded) {
    return Isa::sub(Isa::broadcast(1.0f), Isa::mul(bounded, bounded));
  }

 private:
  static FLASHMASK_INLINE Vec polynomial(const float (&c)[5], Vec z) {
    Vec sum = Isa::broadcast(c[4]);
    for (int k = 3; k >= 0; --k) sum = Isa::fma(sum, z, Isa::broadcast(c[k]));
    return sum;
  }

  float to_cap_, scale_;
};

}  // namespace flashmask::cpu
