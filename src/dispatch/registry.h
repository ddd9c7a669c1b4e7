#pragma once

#include <span>
#include <string>

#include "dispatch/kernel.h"

namespace flashmask {

/// The kernel table of this build, best first.
std::span<const std::unique_ptr<const Kernel>> kernel_table();

/// Why a kernel is refused by the machine or by FLASHMASK_ISA; empty when it can run.
std::string machine_refusal(const Kernel& kernel);

/// The first row that serves the problem. `wanted` is a prefix of a kernel name or a whole one; a name that says a
/// direction concerns that direction only. Throws Status::unsupported with the refusal of every candidate.
const Kernel& select_kernel(Direction direction, const Problem& problem, MaskForm form, const std::string& wanted);

}  // namespace flashmask
