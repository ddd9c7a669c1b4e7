// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/mask_shape.h"

namespace flashmask {

/// Throws unless startend_row_indices can have this shape, number of vectors and `causal`.
void check_row_indices(const MaskShape& shape, int vectors, bool causal);

}  // namespace flashmask
