// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cpu/kernel_tasks.h"
#include "cpu/linear_tasks.h"
#include "flashmask/mask.h"
#include "flashmask/tensor.h"

namespace flashmask::cpu {

/// The kernels of one dtype, compiled for one instruction set.
struct KernelCode {
  DType dtype;
  ForwardCode forward;
  TangentsCode tangents;
  BackwardCode backward;
  LinearCode linear;
};

/// The code that reads the partial tiles of each lowered form.
struct Predicates {
  PredicateCode intervals;
  PredicateCode bits;

  const PredicateCode& of(MaskForm form) const { return form == MaskForm::intervals ? intervals : bits; }
};

/// One level of the CPU table: its kernels and whether this machine can run them.
struct InstructionSet {
  const char* name;
  std::span<const KernelCode> kernels;
  Predicates predicates;
  std::string (*why_not)();         ///< empty when the machine can run them
  std::string (*why_only_named)();  ///< why plans take them only when named; empty: wherever they run
  double (*dot_rate)();             ///< measures the peak of its products, in operations per second
};

/// Returns all instruction sets, best first; the last is scalar and runs anywhere.
std::span<const InstructionSet> instruction_sets();

/// Returns why this machine cannot run a set, or that FLASHMASK_ISA, which names the highest, excludes it; empty if
/// neither.
std::string refusal_of(const InstructionSet& set);

/// Returns why plans take a set only when named; empty if FLASHMASK_ISA names it or plans take it unasked.
std::string reservation_of(const InstructionSet& set);

/// Returns the levels above scalar that this processor family can have; none elsewhere (arm/, x86/ or no_family/, by
/// CMake).
std::span<const InstructionSet> family_instruction_sets();

}  // namespace flashmask::cpu
