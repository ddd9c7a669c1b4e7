// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/instruction_set.h"

namespace flashmask::cpu {

extern const KernelCode kNeonKernels[3];
extern const KernelCode kNeonBf16Kernels[1];

extern const Predicates kNeonPredicates;
extern const Predicates kNeonBf16Predicates;

/// See dot_rate.h. Each needs its instruction set.
double neon_dot_rate();
double neonbf16_dot_rate();

}  // namespace flashmask::cpu
