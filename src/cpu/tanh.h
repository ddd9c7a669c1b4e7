// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/compiler.h"

namespace flashmask::cpu {

/// tanh(x) ≈ x · P(x²) / Q(x²) for |x| ≤ 9, beyond which tanh rounds to 1: minimax in the relative error, which is
/// 2.1e-8 before rounding.
inline constexpr float kTanhP[] = {9.99999979e-01f, 1.33810214e-01f, 3.49558308e-03f, 2.06090005e-05f, 1.33545521e-08f};
inline constexpr float kTanhQ[] = {1.0f, 4.67143370e-01f, 2.58769630e-02f, 3.28562661e-04f, 7.77651259e-07f};

template <class Isa>
FLASHMASK_INLINE typename Isa::Vec tanh_of(typename Isa::Vec x) {
  const auto polynomial = [](const float(&c)[5], typename Isa::Vec z) FLASHMASK_INLINE_LAMBDA {
    auto sum = Isa::broadcast(c[4]);
    for (int k = 3; k >= 0; --k) sum = Isa::fma(sum, z, Isa::broadcast(c[k]));
    return sum;
  };
  x = Isa::min(Isa::broadcast(9.0f), Isa::max(Isa::broadcast(-9.0f), x));  // this order of operands keeps a NaN
  const auto z = Isa::mul(x, x);
  return Isa::div(Isa::mul(x, polynomial(kTanhP, z)), polynomial(kTanhQ, z));
}

}  // namespace flashmask::cpu
