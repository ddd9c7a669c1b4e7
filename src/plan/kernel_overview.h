// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashmask/kernels.h"

/// The kernel table as text, for people: what describe_kernels() returns.
namespace flashmask {

/// An entry of the kernel table, with whether it runs on a machine.
struct KernelOnMachine {
  KernelInfo info;
  std::string why_not;  ///< empty: it runs
};

/// Returns a line for each device, direction and dtype, with the kernels that run and their head dims: on a CPU the
/// best ones, on a GPU one line per architecture; or the reason why none runs.
std::string kernel_overview(const std::vector<KernelOnMachine>& kernels);

/// Returns a line for each kernel that reads masks of `form`: its name, its tile and whether it runs.
std::string kernel_list(const std::vector<KernelOnMachine>& kernels, MaskForm form);

}  // namespace flashmask
