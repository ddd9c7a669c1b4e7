// SPDX-License-Identifier: Apache-2.0
#include "cpu/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <string>
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

/// Returns the value of FLASHMASK_ISA; empty if it is not set.
std::string named_set() {
  const char* name = std::getenv("FLASHMASK_ISA");
  return name == nullptr ? "" : name;
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
  // Never destroyed: other threads may be calling while the process ends.
  static const auto& sets = *new std::vector<InstructionSet>([] {
    const std::span<const InstructionSet> family = family_instruction_sets();
    std::vector<InstructionSet> all(family.begin(), family.end());
    const auto never = [] { return std::string(); };
    all.push_back({"scalar", kScalarKernels, kScalarPredicates, never, never, scalar_dot_rate});
    return all;
  }());
  return sets;
}

std::string refusal_of(const InstructionSet& set) {
  std::string reason = set.why_not();
  const std::string highest = named_set();
  if (!reason.empty() || highest.empty()) return reason;
  return is_above(set, highest) ? "FLASHMASK_ISA=" + highest + " excludes it" : "";
}

std::string reservation_of(const InstructionSet& set) { return named_set() == set.name ? "" : set.why_only_named(); }

}  // namespace cpu

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const cpu::InstructionSet& set : cpu::instruction_sets())
    if (set.why_not().empty() && set.why_only_named().empty()) names.emplace_back(set.name);
  return names;
}

}  // namespace flashmask
