// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernel_code.h"
#include "cpu/x86/avx2_vector.h"
#include "cpu/x86/kernels.h"

namespace flashmask::cpu {

const KernelCode kAvx2Kernels[3] = {kernel_code<Avx2, float>(DType::f32), kernel_code<Avx2, Bf16>(DType::bf16),
                                    kernel_code<Avx2, F16>(DType::f16)};

const Predicates kAvx2Predicates = predicates_of<Avx2>();

double avx2_dot_rate() { return dot_rate<Avx2>(); }

}  // namespace flashmask::cpu
