// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask::cpu {

/// 2^f ≈ 1 + f·(c[0] + f·(c[1] + …)) for f in [0, 1): minimax in the relative error with 2^0 = 1 held exact, so that
/// the largest score of a row has probability exactly 1 before it is divided by the sum. Degree 5 errs by 8.2e-8
/// (float32 kernels), degree 4 by 2.9e-6 (probabilities that are rounded to bfloat16 anyway).
inline constexpr float kExp2Degree5[] = {0.693151295f, 0.240164444f, 5.57999127e-2f, 9.01703071e-3f, 1.86713005e-3f};
inline constexpr float kExp2Degree4[] = {0.693044841f, 0.241280198f, 5.22424728e-2f, 1.34266838e-2f};

}  // namespace flashmask::cpu
