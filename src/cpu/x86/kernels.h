#pragma once

#include "cpu/instruction_set.h"

namespace flashmask::cpu {

extern const KernelCode kAvx2Kernels[3];
extern const KernelCode kAvx512Kernels[3];
extern const KernelCode kAvx512Bf16Kernels[1];

/// Multiply-adds a second of the bfloat16 dot product over those of the float32 multiply-add, measured here and now in
/// well under a millisecond: 2 on Zen 4 and 5, at most 1 where the unit runs at half rate. Needs avx512bf16.
double bf16_dot_speedup();

}  // namespace flashmask::cpu
