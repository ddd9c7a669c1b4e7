// SPDX-License-Identifier: Apache-2.0
#include "cpu/arm/kernels.h"
#include "cpu/arm/neon_vector.h"
#include "cpu/kernel_code.h"

namespace flashmask::cpu {

const KernelCode kNeonKernels[3] = {kernel_code<Neon, float>(DType::f32), kernel_code<Neon, Bf16>(DType::bf16),
                                    kernel_code<Neon, F16>(DType::f16)};

const Predicates kNeonPredicates = predicates_of<Neon>();

double neon_dot_rate() { return dot_rate<Neon>(); }

}  // namespace flashmask::cpu
