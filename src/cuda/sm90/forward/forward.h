// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// Returns the forward's entries of the kernel table, smallest head dim first.
KernelEntries forward_kernels();

}  // namespace flashmask::cuda::sm90
