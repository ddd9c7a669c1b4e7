#include "cpu/instruction_set.h"

#include <vector>

#include "cpu/scalar.h"

namespace flashmask::cpu {

std::span<const InstructionSet> instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    const std::span<const InstructionSet> family = family_instruction_sets();
    std::vector<InstructionSet> all(family.begin(), family.end());
    all.push_back({"scalar", kScalarKernels, kScalarPredicates, [] { return std::string(); }, scalar_dot_rate});
    return all;
  }();
  return sets;
}

}  // namespace flashmask::cpu
