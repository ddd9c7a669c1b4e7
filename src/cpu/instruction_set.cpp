#include "cpu/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cpu/scalar.h"
#include "flashmask/error.h"
#include "flashmask/kernels.h"

namespace flashmask {
namespace cpu {
namespace {

std::string known_names() {
  std::string names;
  for (const InstructionSet& set : instruction_sets()) names += (names.empty() ? "" : ", ") + std::string(set.name);
  return names;
}

/// Whether a set is better than the highest one that may be used.
bool is_above(const InstructionSet& set, std::string_view highest) {
  const std::span<const InstructionSet> sets = instruction_sets();
  const auto limit =
      std::ranges::find(sets, highest, [](const InstructionSet& each) -> std::string_view { return each.name; });
  if (limit == sets.end())
    throw Error(Status::invalid_argument,
                "FLASHMASK_ISA is \"" + std::string(highest) + "\"; expected one of " + known_names());
  return &set < &*limit;
}

}  // namespace

std::span<const InstructionSet> instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    const std::span<const InstructionSet> family = family_instruction_sets();
    std::vector<InstructionSet> all(family.begin(), family.end());
    all.push_back({"scalar", kScalarKernels, kScalarPredicates, [] { return std::string(); }, scalar_dot_rate});
    return all;
  }();
  return sets;
}

std::string refusal_of(const InstructionSet& set) {
  std::string reason = set.why_not();
  const char* highest = std::getenv("FLASHMASK_ISA");
  if (!reason.empty() || highest == nullptr || *highest == '\0') return reason;
  return is_above(set, highest) ? "FLASHMASK_ISA=" + std::string(highest) + " excludes it" : "";
}

}  // namespace cpu

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const cpu::InstructionSet& set : cpu::instruction_sets())
    if (set.why_not().empty()) names.emplace_back(set.name);
  return names;
}

}  // namespace flashmask
