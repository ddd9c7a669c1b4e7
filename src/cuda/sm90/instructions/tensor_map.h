// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "flashmask/tensor.h"

namespace flashmask::cuda::sm90 {

/// Returns what the copy engine needs to copy boxes of (1, rows, 1, 64), with 128-byte swizzle, from or to a tensor
/// (batch, sequence, heads, dim) of 16-bit numbers. Elements past an end of the tensor read as 0.
/// check_rows() must accept the tensor.
CUtensorMap make_tensor_map(const char* name, const TensorView& tensor, int rows);

}  // namespace flashmask::cuda::sm90
