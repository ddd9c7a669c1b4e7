// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/mask_shape.h"

namespace flashmask {

/// Throws where no startend_row_indices look like that.
void check_row_indices(const MaskShape& shape, int vectors, bool causal);

}  // namespace flashmask
