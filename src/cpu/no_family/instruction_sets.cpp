// SPDX-License-Identifier: Apache-2.0
#include "cpu/instruction_set.h"

namespace flashmask::cpu {

std::span<const InstructionSet> family_instruction_sets() { return {}; }

}  // namespace flashmask::cpu
