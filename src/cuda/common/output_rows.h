// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Where a gradient goes, [batch, rows, heads, dim]; strides in elements.
struct OutputRows {
  void* data;
  std::int64_t batch, row, head;

  template <class T>
  __device__ __forceinline__ T* of(int batch_entry, int head_number) const {
    return static_cast<T*>(data) + batch_entry * batch + head_number * head;
  }
};

inline OutputRows output_rows(const TensorView& tensor) {
  return {tensor.data, tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

}  // namespace flashmask::cuda
