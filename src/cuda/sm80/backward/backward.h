// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// Returns the backward's entries of the kernel table, smallest head dim first; for each head dim, those that need much
/// shared memory come first, and those that add up the gradient of q come before the deterministic ones.
KernelEntries backward_kernels();

// Each function appends the entries of one head dim. Each has its own file because a PTX module is compiled as a whole
// when its first kernel runs.
void add_backward_32(KernelEntries& entries);
void add_backward_64(KernelEntries& entries);
void add_backward_96(KernelEntries& entries);
void add_backward_96_compact(KernelEntries& entries);
void add_backward_128(KernelEntries& entries);
void add_backward_128_compact(KernelEntries& entries);
void add_backward_192(KernelEntries& entries);
void add_backward_256(KernelEntries& entries);
void add_backward_512(KernelEntries& entries);

}  // namespace flashmask::cuda::sm80
