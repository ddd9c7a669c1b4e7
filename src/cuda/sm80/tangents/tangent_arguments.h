// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/tensor_views.h"
#include "cuda/common/views.h"
#include "cuda/views/tensors.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm80 {

struct TangentArguments : RowArguments {
  TensorRows q, k, v, o;
  TensorRows tangent_q, tangent_k, tangent_v;  // data null: zeros
  const float* lse;
  OutputRows tangent_o;
  float* tangent_lse;
  std::int64_t lse_batch, lse_head, tangent_lse_batch, tangent_lse_head;  // strides in elements
};

/// Describes a tangent that is absent as a tensor of no rows, whose copies are zeros.
inline TensorRows tangent_rows(const TensorView& tangent) {
  return tangent.present() ? tensor_rows(tangent) : TensorRows{};
}

inline TangentArguments tangent_arguments(const RowArguments& rows, const TangentTensors& tensors) {
  const TensorView &lse = tensors.lse, &tangent_lse = tensors.tangent_lse;
  return {rows,
          tensor_rows(tensors.q),
          tensor_rows(tensors.k),
          tensor_rows(tensors.v),
          tensor_rows(tensors.o),
          tangent_rows(tensors.tangent_q),
          tangent_rows(tensors.tangent_k),
          tangent_rows(tensors.tangent_v),
          static_cast<const float*>(lse.data),
          output_rows(tensors.tangent_o),
          static_cast<float*>(tangent_lse.data),
          lse.strides[0],
          lse.strides[1],
          tangent_lse.strides[0],
          tangent_lse.strides[1]};
}

}  // namespace flashmask::cuda::sm80
