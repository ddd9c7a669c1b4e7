// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/arithmetic.cuh"
#include "flashmask/tensor.h"

/// What a sink, a logit that takes probability and has no value, makes of a row that is otherwise finished.
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

/// Adds a sink to a row's lse and takes its share from the row's factor, all in powers of two. A row that sees nothing,
/// whose lse is −∞, keeps its factor.
__device__ __forceinline__ void add_sink(float sink_log2, float& factor, float& lse_log2) {
  if (lse_log2 == -INFINITY) {
    lse_log2 = sink_log2;
    return;
  }
  const float ratio = exp2_approximate(-fabsf(sink_log2 - lse_log2));  // of the smaller to the larger
  // Of numbers from 1 to 2, which the short instructions get right to 2^−22.
  factor *= __fdividef(sink_log2 > lse_log2 ? ratio : 1, 1 + ratio);
  lse_log2 = fmaxf(sink_log2, lse_log2) + __log2f(1 + ratio);
}

}  // namespace flashmask::cuda
