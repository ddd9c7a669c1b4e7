// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The constants of all dropout draws: Philox 4×32-7 (Salmon et al. 2011, section 3.3). Seven rounds are the fewest
/// that pass BigCrush's tests of random numbers (their table 2); kernels with dropout spend most of their time on them.
namespace flashmask::philox {

inline constexpr std::uint32_t kRounds = 7;
inline constexpr std::uint32_t kFactor0 = 0xD2511F53, kFactor2 = 0xCD9E8D57;    // factors of counter words 0 and 2
inline constexpr std::uint32_t kKeyStep0 = 0x9E3779B9, kKeyStep1 = 0xBB67AE85;  // added to the key each round

}  // namespace flashmask::philox
