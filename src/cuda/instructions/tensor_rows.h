// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Rows of one head in global memory, of 16-bit numbers.
struct Rows {
  const std::uint16_t* first;
  std::int64_t stride;  // in elements
  int rows, dim;        // how many there are of each
};

/// A tensor [batch, rows, heads, dim] of 16-bit numbers; strides in elements.
struct TensorRows {
  const std::uint16_t* data;
  std::int64_t batch, row, head;
  int rows, dim;

  __device__ __forceinline__ Rows of(int batch_entry, int head_number) const {
    return {data + batch_entry * batch + head_number * head, row, rows, dim};
  }
};

inline TensorRows tensor_rows(const TensorView& tensor) {
  return {static_cast<const std::uint16_t*>(tensor.data),
          tensor.strides[0],
          tensor.strides[1],
          tensor.strides[2],
          static_cast<int>(tensor.shape[1]),
          static_cast<int>(tensor.shape[3])};
}

}  // namespace flashmask::cuda
