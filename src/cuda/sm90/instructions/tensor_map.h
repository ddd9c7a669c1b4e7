#pragma once

#include <cuda.h>

#include "flashmask/tensor.h"

namespace flashmask::cuda::sm90 {

/// Throws Status::invalid_argument, naming the tensor, where its rows of 16-bit numbers cannot be read and written 16
/// bytes at a time: its start and its strides are to be multiples of 16 bytes. `name` is the call's and the tensor's,
/// such as "forward: q".
void check_rows(const char* name, const TensorView& tensor);

/// What the copy engine needs to know of a tensor (batch, sequence, heads, dim) of 16-bit numbers to copy boxes of
/// (1, rows, 1, 64), with 128-byte swizzle. What lies past an end of the tensor reads as 0. Checks the rows first.
CUtensorMap make_tensor_map(const char* name, const TensorView& tensor, int rows);

}  // namespace flashmask::cuda::sm90
