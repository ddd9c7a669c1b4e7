// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Throws Status::invalid_argument, naming the tensor, where its rows cannot be read and written 16 bytes at a time:
/// its start and its strides must be multiples of 16 bytes. `name` names the call and the tensor, such as "forward: q".
void check_rows(const char* name, const TensorView& tensor);

/// Returns the bytes between neighbours along an axis, after the same check. For an axis of length 1 any legal stride
/// is returned; it is never used.
std::int64_t stride_bytes(const char* name, const TensorView& tensor, int axis);

}  // namespace flashmask::cuda
