// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask::cuda {

/// log₂ e and ln 2: kernels compute in powers of two, and lse is a natural logarithm.
inline constexpr float kLog2E = 1.44269504088896F, kLn2 = 0.693147180559945F;

}  // namespace flashmask::cuda
