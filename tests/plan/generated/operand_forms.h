// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/generate_change.h"

namespace flashmask::test {

/// Operands whose last axis is dense, and operands whose first one is, two of them with strides that may take 64 bits.
inline constexpr TensorForms kOperandForms[] = {
    {}, {{{.dense = false}, {.dense = false, .wide = 15}, {.dense = false}, {.dense = false, .wide = 15}, {}}}};

}  // namespace flashmask::test
