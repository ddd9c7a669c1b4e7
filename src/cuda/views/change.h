// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/dtype.h"

/// What kernels that are compiled with a change of scores are told about it: plain structs, which host code fills
/// (compile/change_text.h).
namespace flashmask::cuda {

/// A tensor that a change of scores reads. Strides are in elements; an axis that it lacks has size 1.
struct ChangeTensor {
  const void* data;
  std::int64_t strides[4];
  int sizes[4];
  DType dtype;
};

/// The numbers and tensors that the text of a change names, in its order.
struct ChangeOperands {
  static constexpr int kNumbers = 16, kIntegers = 4,
                       kTensors = 5;  // a function's four, and a bias
  float numbers[kNumbers];
  int integers[kIntegers];
  ChangeTensor tensors[kTensors];
};

}  // namespace flashmask::cuda
