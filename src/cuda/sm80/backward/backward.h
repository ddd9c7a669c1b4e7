// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// Returns the backward's entries of the kernel table, smallest head dim first; for each head dim, those that need much
/// shared memory come first, and those that add up the gradient of q come before the deterministic ones.
KernelRows backward_kernels();

// Each function appends the entries of one head dim. Each has its own file because a PTX module is compiled as a whole
// when its first kernel runs.
void add_backward_64(KernelRows& rows);
void add_backward_96(KernelRows& rows);
void add_backward_128(KernelRows& rows);
void add_backward_192(KernelRows& rows);
void add_backward_256(KernelRows& rows);
void add_backward_512(KernelRows& rows);

}  // namespace flashmask::cuda::sm80
