// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernel_code.h"
#include "cpu/x86/avx512_vector.h"
#include "cpu/x86/kernels.h"

namespace flashmask::cpu {

const KernelCode kAvx512Kernels[3] = {kernel_code<Avx512, float>(DType::f32), kernel_code<Avx512, Bf16>(DType::bf16),
                                      kernel_code<Avx512, F16>(DType::f16)};

const Predicates kAvx512Predicates = predicates_of<Avx512>();

double avx512_dot_rate() { return dot_rate<Avx512>(); }

}  // namespace flashmask::cpu
