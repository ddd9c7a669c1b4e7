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

/// One line a device, direction and dtype: the best kernels that run with their head dims, or the reason why none does.
std::string kernel_overview(const std::vector<KernelOnMachine>& kernels);

}  // namespace flashmask::cli
