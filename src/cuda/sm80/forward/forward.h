// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// Returns the forward's entries of the kernel table, smallest head dim first; for each head dim, those that need much
/// shared memory come first.
KernelEntries forward_kernels();

// Each function appends the entries of one head dim. Each has its own file because a PTX module is compiled as a whole
// when its first kernel runs.
void add_forward_32(KernelEntries& entries);
void add_forward_64(KernelEntries& entries);
void add_forward_96(KernelEntries& entries);
void add_forward_96_compact(KernelEntries& entries);
void add_forward_128(KernelEntries& entries);
void add_forward_128_compact(KernelEntries& entries);
void add_forward_192(KernelEntries& entries);
void add_forward_256(KernelEntries& entries);
void add_forward_256_compact(KernelEntries& entries);
void add_forward_512(KernelEntries& entries);

}  // namespace flashmask::cuda::sm80
