// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// Returns the forward's entries of the kernel table, smallest head dim first; for each head dim, those that need much
/// shared memory come first.
KernelRows forward_kernels();

// Each function appends the entries of one head dim. Each has its own file because a PTX module is compiled as a whole
// when its first kernel runs.
void add_forward_64(KernelRows& rows);
void add_forward_96(KernelRows& rows);
void add_forward_128(KernelRows& rows);
void add_forward_192(KernelRows& rows);
void add_forward_256(KernelRows& rows);
void add_forward_512(KernelRows& rows);

}  // namespace flashmask::cuda::sm80
