// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/instruction_set.h"

namespace flashmask::cpu {

extern const KernelCode kAvx2Kernels[3];
extern const KernelCode kAvx512Kernels[3];
extern const KernelCode kAvx512Bf16Kernels[1];

extern const Predicates kAvx2Predicates;
extern const Predicates kAvx512Predicates;
extern const Predicates kAvx512Bf16Predicates;

/// See dot_rate.h. Each needs its instruction set.
double avx2_dot_rate();
double avx512_dot_rate();
double avx512bf16_dot_rate();

}  // namespace flashmask::cpu
