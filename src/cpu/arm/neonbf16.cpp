// SPDX-License-Identifier: Apache-2.0
#include "cpu/arm/kernels.h"
#include "cpu/arm/neonbf16_vector.h"
#include "cpu/kernel_code.h"

namespace flashmask::cpu {

const KernelCode kNeonBf16Kernels[1] = {kernel_code<NeonBf16, Bf16>(DType::bf16)};

const Predicates kNeonBf16Predicates = predicates_of<NeonBf16>();

double neonbf16_dot_rate() { return dot_rate<NeonBf16>(); }

}  // namespace flashmask::cpu
