// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/views/tensors.h"
#include "flashmask/attention.h"

/// Fills the tensors that kernels are given (views/tensors.h).
namespace flashmask::cuda {

inline TensorRows tensor_rows(const TensorView& tensor) {
  return {static_cast<const std::uint16_t*>(tensor.data),
          tensor.strides[0],
          tensor.strides[1],
          tensor.strides[2],
          static_cast<int>(tensor.shape[1]),
          static_cast<int>(tensor.shape[3])};
}

inline OutputRows output_rows(const TensorView& tensor) {
  return {tensor.data, tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

inline LseView lse_view(const Problem& problem, const BackwardTensors& tensors) {
  const auto &lse = tensors.lse, &grad_lse = tensors.grad_lse;
  return {.lse = static_cast<const float*>(lse.data),
          .grad_lse = grad_lse.present() ? static_cast<const float*>(grad_lse.data) : nullptr,
          .lse_batch = lse.strides[0],
          .lse_head = lse.strides[1],
          .grad_lse_batch = grad_lse.strides[0],
          .grad_lse_head = grad_lse.strides[1],
          .query_length = static_cast<int>(problem.query_length)};
}

}  // namespace flashmask::cuda
