// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernel_code.h"
#include "cpu/x86/avx512bf16_vector.h"
#include "cpu/x86/kernels.h"

namespace flashmask::cpu {

const KernelCode kAvx512Bf16Kernels[1] = {kernel_code<Avx512Bf16, Bf16>(DType::bf16)};

const Predicates kAvx512Bf16Predicates = predicates_of<Avx512Bf16>();

double avx512bf16_dot_rate() { return dot_rate<Avx512Bf16>(); }

}  // namespace flashmask::cpu
