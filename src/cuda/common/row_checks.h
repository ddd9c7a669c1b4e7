// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Throws Status::invalid_argument, naming the tensor, where its rows cannot be read and written 16
/// bytes at a time: its start and its strides are to be multiples of 16 bytes. `name` is the call's and the tensor's,
/// such as "forward: q".
void check_rows(const char* name, const TensorView& tensor);

/// Bytes between neighbours along an axis, checked likewise. That of an axis of one entry is never used: any legal one.
std::int64_t stride_bytes(const char* name, const TensorView& tensor, int axis);

}  // namespace flashmask::cuda
