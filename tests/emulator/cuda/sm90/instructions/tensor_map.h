// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the product's file of this name where kernels are compiled for a CPU.

#include <cuda.h>

#include "flashmask/tensor.h"

namespace flashmask::cuda::sm90 {

inline CUtensorMap make_tensor_map(const char*, const TensorView& tensor, int rows) {
  const auto reversed = [](const auto& of_axes) {
    return std::array<std::int64_t, 4>{of_axes[3], of_axes[2], of_axes[1], of_axes[0]};
  };
  return {static_cast<std::uint16_t*>(tensor.data), reversed(tensor.shape), reversed(tensor.strides), rows};
}

}  // namespace flashmask::cuda::sm90
