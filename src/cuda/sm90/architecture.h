// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/kernel_row.h"

namespace flashmask::cuda::sm90 {

/// H100 and H200: wgmma, setmaxnreg and what else is of sm_90a alone.
inline constexpr Architecture kArchitecture{"sm90", {9, 0}};

}  // namespace flashmask::cuda::sm90
