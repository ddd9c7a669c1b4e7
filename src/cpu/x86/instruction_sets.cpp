// SPDX-License-Identifier: Apache-2.0
#include <cpuid.h>

#include <array>
#include <string>
#include <utility>

#include "cpu/instruction_set.h"
#include "cpu/x86/kernels.h"
#include "cpu/x86/processor.h"

namespace flashmask::cpu {
namespace {

// cpuid is slow on a virtual machine: each question is asked once.
bool cpuid_bit(unsigned leaf, unsigned subleaf, unsigned (*pick)(unsigned eax, unsigned ecx)) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx) != 0 && pick(eax, ecx) != 0;
}

bool has_avx2() {
  static const bool f16c = cpuid_bit(1, 0, [](unsigned, unsigned ecx) { return ecx & bit_F16C; });
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_bf16_dot() {
  static const bool bf16 = cpuid_bit(7, 1, [](unsigned eax, unsigned) { return eax & 1u << 5; });
  return bf16 && has_avx512();
}

std::string avx2_why_not() { return has_avx2() ? "" : "the processor lacks AVX2, FMA or F16C"; }

std::string avx512_why_not() { return has_avx512() ? "" : "the processor lacks AVX-512 F, BW, DQ or VL"; }

std::string avx512bf16_why_not() { return has_bf16_dot() ? "" : "the processor lacks AVX512_BF16"; }

Processor ask_processor() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid(0, &eax, &ebx, &ecx, &edx);
  std::string vendor;
  for (const unsigned letters : {ebx, edx, ecx})
    for (int byte = 0; byte < 4; ++byte) vendor += static_cast<char>(letters >> 8 * byte & 0xff);
  __get_cpuid(1, &eax, &ebx, &ecx, &edx);
  return decode_processor(std::move(vendor), eax);
}

/// Decided by the model, not by a measurement, so that the bits of results are the same on every run.
std::string avx512bf16_why_only_named() {
  static const Processor& processor = *new Processor(ask_processor());  // never destroyed, like the sets
  if (has_fast_bf16_dot(processor)) return "";
  return "bfloat16 dot products are not known to be faster than float32 on " + processor.vendor + " family " +
         std::to_string(processor.family) + " model " + std::to_string(processor.model) +
         "; FLASHMASK_ISA=avx512bf16 takes it";
}

std::string never() { return ""; }

}  // namespace

std::span<const InstructionSet> family_instruction_sets() {
  static const std::array<InstructionSet, 3> sets = {
      {{"avx512bf16", kAvx512Bf16Kernels, kAvx512Bf16Predicates, avx512bf16_why_not, avx512bf16_why_only_named,
        avx512bf16_dot_rate},
       {"avx512", kAvx512Kernels, kAvx512Predicates, avx512_why_not, never, avx512_dot_rate},
       {"avx2", kAvx2Kernels, kAvx2Predicates, avx2_why_not, never, avx2_dot_rate}}};
  return sets;
}

}  // namespace flashmask::cpu
