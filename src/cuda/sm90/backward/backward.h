// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// The backward's rows of the kernel table, smallest head dim first.
KernelRows backward_kernels();

}  // namespace flashmask::cuda::sm90
