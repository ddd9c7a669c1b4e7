// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/tensor_views.h"
#include "cuda/common/views.h"
#include "cuda/sm80/forward/forward_shape.cuh"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm80 {

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
          static_cast<int>(tensors.v.shape[3]),
          max_scores_view(tensors.max_scores),
          {}};
}

}  // namespace flashmask::cuda::sm80
