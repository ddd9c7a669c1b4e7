// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

/// Returns the backward's entries of the kernel table: those by sums, then the deterministic ones, each with the
/// smallest head dim first.
KernelEntries backward_kernels();

}  // namespace flashmask::cuda::sm90
