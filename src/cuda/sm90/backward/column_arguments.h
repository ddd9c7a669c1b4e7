// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/backward/column_shape.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm90 {

/// Sets where the gradients go.
inline void set_outputs(ColumnArguments& arguments, const BackwardTensors& tensors) {
  arguments.grad_q = tensors.grad_q.data;
  arguments.grad_q_batch = tensors.grad_q.strides[0];
  arguments.grad_q_row = tensors.grad_q.strides[1];
  arguments.grad_q_head = tensors.grad_q.strides[2];
  arguments.grad_k = tensors.grad_k.data;
  arguments.grad_k_batch = tensors.grad_k.strides[0];
  arguments.grad_k_row = tensors.grad_k.strides[1];
  arguments.grad_k_head = tensors.grad_k.strides[2];
  arguments.grad_v = tensors.grad_v.data;
  arguments.grad_v_batch = tensors.grad_v.strides[0];
  arguments.grad_v_row = tensors.grad_v.strides[1];
  arguments.grad_v_head = tensors.grad_v.strides[2];
  arguments.float32_gradients = tensors.grad_k.dtype == DType::f32;
}

}  // namespace flashmask::cuda::sm90
