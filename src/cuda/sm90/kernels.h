// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/table_entry.h"

namespace flashmask::cuda::sm90 {

/// Returns the entries of the kernel table for H100 and H200, best first.
KernelEntries kernels();

}  // namespace flashmask::cuda::sm90
