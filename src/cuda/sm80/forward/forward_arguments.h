// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/views.h"
#include "cuda/views/tensors.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm80 {

struct ForwardArguments : RowArguments {
  TensorRows q, k, v;
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int value_dim;
};

inline ForwardArguments forward_arguments(const RowArguments& rows, const ForwardTensors& tensors) {
  return {rows,
          tensor_rows(tensors.q),
          tensor_rows(tensors.k),
          tensor_rows(tensors.v),
          tensors.o.data,
          static_cast<float*>(tensors.lse.data),
          tensors.o.strides[0],
          tensors.o.strides[1],
          tensors.o.strides[2],
          tensors.lse.strides[0],
          tensors.lse.strides[1],
          static_cast<int>(tensors.v.shape[3])};
}

}  // namespace flashmask::cuda::sm80
