// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "flashmask/tensor.h"

namespace flashmask::cuda::sm90 {

/// What the copy engine needs to know of a tensor (batch, sequence, heads, dim) of 16-bit numbers to copy boxes of
/// (1, rows, 1, 64), with 128-byte swizzle. What lies past an end of the tensor reads as 0. Checks the rows first.
CUtensorMap make_tensor_map(const char* name, const TensorView& tensor, int rows);

}  // namespace flashmask::cuda::sm90
