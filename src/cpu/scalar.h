// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/instruction_set.h"

namespace flashmask::cpu {

extern const KernelCode kScalarKernels[3];
extern const Predicates kScalarPredicates;

double scalar_dot_rate();

}  // namespace flashmask::cpu
