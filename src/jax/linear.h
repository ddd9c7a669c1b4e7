// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "flashmask/linear_attention.h"
#include "jax/frame.h"
#include "jax/plan_cache.h"

namespace flashmask::jax {

/// What the attributes of a call of linear attention and the operands that both directions share say. The mask is an
/// attribute, since the host walks its nodes: row indices of one list for all heads, or none, which is causal.
struct LinearCall {
  LinearProblem problem = {};
  TensorView q = {}, k = {}, v = {}, log_forget = {}, log_input = {};
  std::span<const std::int32_t> mask = {};  ///< [mask_batch, length, vectors]; empty: causal
  std::int64_t mask_batch = 1;
  int vectors = 0;
  bool causal = false;
};

/// Reads a forward or a backward. Operands come in this order: q, k, v, and those that are given of log_forget and
/// log_input; a backward's then are o and grad_o.
LinearCall read_linear_call(Frame& frame, Device device);

LinearForwardTensors linear_forward_tensors(const LinearCall& call, Frame& frame);
LinearBackwardTensors linear_backward_tensors(const LinearCall& call, Frame& frame);

/// The plan of a call, which is made once for each mask and problem.
std::shared_ptr<const LinearPlan> linear_plan_of(const LinearCall& call);

}  // namespace flashmask::jax
