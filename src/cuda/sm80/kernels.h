// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/table_entry.h"

namespace flashmask::cuda::sm80 {

/// Returns the entries of the kernel table for GPUs since sm_80, best first.
KernelEntries kernels();

}  // namespace flashmask::cuda::sm80
