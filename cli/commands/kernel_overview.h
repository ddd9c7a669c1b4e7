// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashmask/kernels.h"

namespace flashmask::cli {

/// A row of the kernel table as it is on a machine.
struct KernelOnMachine {
  KernelInfo info;
  std::string why_not;  ///< empty: it runs
};

/// Of each device, direction and dtype the kernels that run, with their head dims: on a CPU the best ones, on a GPU a
/// line a family; or the reason why none does.
std::string kernel_overview(const std::vector<KernelOnMachine>& kernels);

}  // namespace flashmask::cli
