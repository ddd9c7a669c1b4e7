// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/kernel_entry.h"

namespace flashmask::cuda::sm90 {

/// H100 and H200, for wgmma, setmaxnreg and everything else that only sm_90a has.
inline constexpr Architecture kArchitecture{"sm90", {9, 0}};

}  // namespace flashmask::cuda::sm90
