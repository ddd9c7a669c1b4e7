// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What kernels that are compiled with a change of scores are told about it: plain structs, which host code fills
/// (compile/change_text.h).
namespace flashmask::cuda {

/// A tensor that a change of scores reads. An axis that it lacks is one that is never left.
struct ChangeTensor {
  const void* data;
  std::int64_t strides[4];  // in bytes
  int last[4];              // last index along each axis
};

/// The numbers and tensors that the text of a change names, in its order.
struct ChangeOperands {
  static constexpr int kNumbers = 32, kIntegers = 4,
                       kTensors = 5;  // a function's four, and a bias
  float numbers[kNumbers];
  int integers[kIntegers];
  ChangeTensor tensors[kTensors];
};

}  // namespace flashmask::cuda
