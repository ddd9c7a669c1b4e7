// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/kernel.h"

namespace flashmask::cuda::sm80 {

/// The backward's rows of the kernel table, smallest head dim first; of each those for much shared memory first, and
/// those by sums before those that are deterministic.
KernelRows backward_kernels();

// Of one head dim, appended: a file each, because a module of PTX is compiled whole when its first kernel runs.
void add_backward_64(KernelRows& rows);
void add_backward_96(KernelRows& rows);
void add_backward_128(KernelRows& rows);
void add_backward_192(KernelRows& rows);
void add_backward_256(KernelRows& rows);
void add_backward_512(KernelRows& rows);

}  // namespace flashmask::cuda::sm80
