// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/tensor.h"

/// The effect of a sink, a logit that takes probability and has no value, on a row that is otherwise finished.
namespace flashmask::cuda {

/// Sinks as the caller gives them. Strides are in elements, 0 where rows or batch entries share one.
struct SinkView {
  const void* data;               // null: none
  std::int64_t batch, head, row;  // row: 1 where each row has its own, else 0
  bool wide;                      // float32 rather than the kernel's element

  template <class T>
  __device__ __forceinline__ float at(int of_batch, int of_head, int of_row) const {
    const std::int64_t place = of_batch * batch + of_head * head + of_row * row;
    return wide ? static_cast<const float*>(data)[place] : static_cast<float>(static_cast<const T*>(data)[place]);
  }
};

inline SinkView sink_view(const TensorView& sinks) {
  const bool of_rows = sinks.rank == 3;
  return {.data = sinks.present() ? sinks.data : nullptr,
          .batch = of_rows ? sinks.strides[0] : 0,
          .head = sinks.strides[of_rows ? 1 : 0],
          .row = of_rows ? 1 : 0,
          .wide = sinks.dtype == DType::f32};
}

}  // namespace flashmask::cuda
