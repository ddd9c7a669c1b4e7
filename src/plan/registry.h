// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "plan/kernel.h"
#include "plan/linear.h"

namespace flashmask {

/// The kernel table of this build, best first: its entries for attention, and those for linear attention.
std::span<const Kernel* const> kernel_table();
std::span<const LinearKernel* const> linear_kernel_table();

/// A plan's request to the table.
struct KernelRequest {
  Direction direction;
  const Problem& problem;
  MaskForm form;
  /// A kernel name or a prefix of one; a name that states a direction concerns that direction only.
  const std::string& wanted;
  Features needed = {};    ///< in addition to what the problem needs
  std::int64_t block = 0;  ///< of a block map beside the mask: tiles must divide it; 0: none
};

/// Returns the first entry that serves the problem; nullptr if none does.
const Kernel* find_kernel(const KernelRequest& request);
/// Returns the first entry that serves the problem, which is on a GPU, on GPUs of a kind, whatever this machine has.
const Kernel* find_kernel(const KernelRequest& request, const GpuKind& kind);
/// Returns why none does, with the refusal of every candidate.
std::string no_kernel(const KernelRequest& request);
/// Returns find_kernel(), or throws Status::unsupported with no_kernel().
const Kernel& select_kernel(const KernelRequest& request);

}  // namespace flashmask
