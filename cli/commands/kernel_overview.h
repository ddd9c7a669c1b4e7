// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashmask/kernels.h"

namespace flashmask::cli {

/// An entry of the kernel table, with whether it runs on a machine.
struct KernelOnMachine {
  KernelInfo info;
  std::string why_not;  ///< empty: it runs
};

/// The kernels that run for each device, direction and dtype, with their head dims: on a CPU the best ones, on a GPU
/// one line per architecture; or the reason why none runs.
std::string kernel_overview(const std::vector<KernelOnMachine>& kernels);

}  // namespace flashmask::cli
