// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/views.h"
#include "cuda/sm90/forward/forward_shape.h"

namespace flashmask::cuda::sm90 {

inline ForwardArguments forward_arguments(const RowArguments& rows, const Problem& problem,
                                          const ForwardTensors& tensors) {
  ForwardArguments arguments{};
  static_cast<RowArguments&>(arguments) = rows;
  arguments.o = tensors.o.data;
  arguments.o_batch = tensors.o.strides[0];
  arguments.o_row = tensors.o.strides[1];
  arguments.o_head = tensors.o.strides[2];
  arguments.lse = static_cast<float*>(tensors.lse.data);
  arguments.lse_batch = tensors.lse.strides[0];
  arguments.lse_head = tensors.lse.strides[1];
  arguments.value_dim = static_cast<int>(problem.value_dim);
  arguments.softcap = softcap_arguments(problem);
  arguments.max_scores = max_scores_view(tensors.max_scores);
  return arguments;
}

}  // namespace flashmask::cuda::sm90
