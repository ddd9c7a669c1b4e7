// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/kernel_entry.h"

namespace flashmask::cuda::sm80 {

/// GPUs since the A100. Some kernels of kLarge need the shared memory that an A100, H100 or B200 has; those of
/// kCompact, with compact tiles, run where a block may have 99 KB: the RTX 30, 40 and 50, the A10, L4 and L40S.
inline constexpr Architecture kLarge{"sm80", {8, 0}}, kCompact{"sm86", {8, 0}};
inline constexpr std::size_t kLargeSharedBytes = std::size_t{163} << 10, kCompactSharedBytes = std::size_t{99} << 10;

}  // namespace flashmask::cuda::sm80
