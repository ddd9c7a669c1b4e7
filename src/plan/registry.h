// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "plan/kernel.h"

namespace flashmask {

/// The kernel table of this build, best first.
std::span<const std::unique_ptr<const Kernel>> kernel_table();

/// What a plan asks the table for.
struct KernelRequest {
  Direction direction;
  const Problem& problem;
  MaskForm form;
  /// A prefix of a kernel name or a whole one; a name that says a direction concerns that direction only.
  const std::string& wanted;
  Features needed = {};    ///< beside what the problem needs
  std::int64_t block = 0;  ///< of a block map beside the mask: only rows whose tiles divide it; 0: none
};

/// The first row that serves the problem; nullptr: none does.
const Kernel* find_kernel(const KernelRequest& request);
/// Why none does, with the refusal of every candidate.
std::string no_kernel(const KernelRequest& request);
/// find_kernel(), or throws Status::unsupported with no_kernel().
const Kernel& select_kernel(const KernelRequest& request);

}  // namespace flashmask
