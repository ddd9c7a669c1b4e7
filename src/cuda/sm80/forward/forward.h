// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// The forward's rows of the kernel table, smallest head dim first, and of each those for much shared memory first.
KernelRows forward_kernels();

// Of one head dim, appended: a file each, because a module of PTX is compiled whole when its first kernel runs.
void add_forward_64(KernelRows& rows);
void add_forward_96(KernelRows& rows);
void add_forward_128(KernelRows& rows);
void add_forward_192(KernelRows& rows);
void add_forward_256(KernelRows& rows);
void add_forward_512(KernelRows& rows);

}  // namespace flashmask::cuda::sm80
