// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include "cpu/arm/kernels.h"
#include "cpu/arm/processor.h"
#include "cpu/instruction_set.h"

namespace flashmask::cpu {
namespace {

std::string neonbf16_why_not() { return has_bf16_dot() ? "" : "the processor lacks FEAT_BF16"; }

/// No processor takes them unasked until one is measured: which set a plan takes decides the bits of its results.
std::string neonbf16_why_only_named() {
  return "bfloat16 dot products were measured on no ARM processor; FLASHMASK_ISA=neonbf16 takes them";
}

std::string never() { return ""; }

}  // namespace

std::span<const InstructionSet> family_instruction_sets() {
  static const std::array<InstructionSet, 2> sets = {
      {{"neonbf16", kNeonBf16Kernels, kNeonBf16Predicates, neonbf16_why_not, neonbf16_why_only_named,
        neonbf16_dot_rate},
       {"neon", kNeonKernels, kNeonPredicates, never, never, neon_dot_rate}}};
  return sets;
}

}  // namespace flashmask::cpu
