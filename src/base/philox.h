// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What all draws of dropout share: Philox 4×32-7 (Salmon et al. 2011, section 3.3). Seven rounds are the fewest that
/// pass BigCrush's tests of random numbers (their table 2), and what kernels with dropout spend most of their time on.
namespace flashmask::philox {

inline constexpr std::uint32_t kRounds = 7;
inline constexpr std::uint32_t kFactor0 = 0xD2511F53, kFactor2 = 0xCD9E8D57;    // of numbers 0 and 2
inline constexpr std::uint32_t kKeyStep0 = 0x9E3779B9, kKeyStep1 = 0xBB67AE85;  // from round to round

}  // namespace flashmask::philox
