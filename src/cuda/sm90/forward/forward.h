// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// The forward's rows of the kernel table, smallest head dim first.
KernelRows forward_kernels();

}  // namespace flashmask::cuda::sm90
