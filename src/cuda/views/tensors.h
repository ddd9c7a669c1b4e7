// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Tensors as kernels are given them: plain structs, which host code fills (common/tensor_views.h).
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

/// Where a gradient goes, [batch, rows, heads, dim]; strides in elements.
struct OutputRows {
  void* data;
  std::int64_t batch, row, head;

  template <class T>
  __device__ __forceinline__ T* of(int batch_entry, int head_number) const {
    return static_cast<T*>(data) + batch_entry * batch + head_number * head;
  }
};

/// lse and its gradient, as the caller gives them; strides in elements.
struct LseView {
  const float *lse, *grad_lse;  // grad_lse: null where there is none
  std::int64_t lse_batch, lse_head, grad_lse_batch, grad_lse_head;
  int query_length;
};

/// What the backward needs for each query row besides the tensors: float32 [batch, query heads, padded rows].
struct BackwardStatistics {
  float* lse_log2;  ///< lse · log2(e); +∞ for rows that see nothing and for padding: their probabilities become 0
  float* dot;       ///< Σ o · grad_o − grad_lse; 0 for those rows
  std::int64_t padded;  ///< rows per head, padding included
};

/// Rows, and columns, of the tiles in which the gradient of a bias is summed.
constexpr std::int64_t kBiasTile = 128;

/// Returns how many of these tiles so many tokens take.
constexpr std::int64_t bias_tiles(std::int64_t tokens) { return (tokens + kBiasTile - 1) / kBiasTile; }

}  // namespace flashmask::cuda
