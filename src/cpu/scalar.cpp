// SPDX-License-Identifier: Apache-2.0
#include "cpu/scalar.h"

#include "cpu/kernel_code.h"
#include "cpu/scalar_vector.h"

namespace flashmask::cpu {

const KernelCode kScalarKernels[3] = {kernel_code<Scalar, float>(DType::f32), kernel_code<Scalar, Bf16>(DType::bf16),
                                      kernel_code<Scalar, F16>(DType::f16)};

const Predicates kScalarPredicates = predicates_of<Scalar>();

double scalar_dot_rate() { return dot_rate<Scalar>(); }

}  // namespace flashmask::cpu
