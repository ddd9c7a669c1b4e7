// SPDX-License-Identifier: Apache-2.0
#include "jax/linear.h"

#include <bit>

#include "flashmask/builders.h"
#include "flashmask/startend_row_indices.h"
#include "jax/call.h"

namespace flashmask::jax {
namespace {

LinearProblem problem_of(const LinearCall& call, const Frame& frame, Device device) {
  const auto &q = call.q.shape, &v = call.v.shape;
  LinearProblem problem{.batch = q[0],
                        .length = q[1],
                        .heads = v[2],
                        .key_heads = q[2],
                        .key_dim = q[3],
                        .value_dim = v[3],
                        .dtype = call.q.dtype,
                        .device = device,
                        .normalize = frame.flag("normalize")};
  const double scale = frame.number("scale");
  if (scale != 0) problem.scale = static_cast<float>(scale);
  return problem;
}

Mask mask_of(const LinearCall& call) {
  const std::int64_t length = call.problem.length;
  if (call.mask.empty()) return masks::causal(length, length);
  return from_startend_row_indices(call.mask, {call.mask_batch, 1, length, length}, call.vectors, call.causal);
}

PlanKey key_of(const LinearCall& call) {
  const LinearProblem& problem = call.problem;
  PlanKey key{{}, {}, std::as_bytes(call.mask)};
  key.numbers = {kLinearAttention,
                 problem.batch,
                 problem.length,
                 problem.heads,
                 problem.key_heads,
                 problem.key_dim,
                 problem.value_dim,
                 static_cast<std::int64_t>(problem.dtype),
                 static_cast<std::int64_t>(problem.device.type),
                 problem.device.index,
                 std::bit_cast<std::int32_t>(problem.query_scale()),
                 static_cast<std::int64_t>(problem.normalize),
                 call.mask_batch,
                 call.vectors,
                 static_cast<std::int64_t>(call.causal)};
  return key;
}

}  // namespace

LinearCall read_linear_call(Frame& frame, Device device) {
  LinearCall call;
  const auto next = [&] { return contiguous_view(frame.next_operand(), device); };
  call.q = next();
  call.k = next();
  call.v = next();
  if (frame.flag("has_log_forget")) call.log_forget = next();
  if (frame.flag("has_log_input")) call.log_input = next();
  call.problem = problem_of(call, frame, device);
  if (!frame.flag("has_mask")) return call;
  call.mask = frame.integers("mask");
  call.mask_batch = frame.integer("mask_batch");
  call.vectors = static_cast<int>(frame.integer("vectors"));
  call.causal = frame.flag("causal");
  return call;
}

LinearForwardTensors linear_forward_tensors(const LinearCall& call, Frame& frame) {
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          .log_forget = call.log_forget,
          .log_input = call.log_input,
          .o = contiguous_view(frame.next_result(), call.problem.device)};
}

LinearBackwardTensors linear_backward_tensors(const LinearCall& call, Frame& frame) {
  const Device device = call.problem.device;
  LinearBackwardTensors tensors;
  tensors.q = call.q;
  tensors.k = call.k;
  tensors.v = call.v;
  tensors.log_forget = call.log_forget;
  tensors.log_input = call.log_input;
  tensors.o = contiguous_view(frame.next_operand(), device);
  tensors.grad_o = contiguous_view(frame.next_operand(), device);
  tensors.grad_q = contiguous_view(frame.next_result(), device);
  tensors.grad_k = contiguous_view(frame.next_result(), device);
  tensors.grad_v = contiguous_view(frame.next_result(), device);
  if (call.log_forget.present()) tensors.grad_log_forget = contiguous_view(frame.next_result(), device);
  if (call.log_input.present()) tensors.grad_log_input = contiguous_view(frame.next_result(), device);
  return tensors;
}

std::shared_ptr<const LinearPlan> linear_plan_of(const LinearCall& call) {
  constexpr std::size_t kBytesOfToken = 40;  // what the nodes of a token keep at most
  return std::static_pointer_cast<const LinearPlan>(plan_cache().find_or_make(key_of(call), [&]() -> CachedPlan {
    return {std::make_shared<const LinearPlan>(linear_plan(mask_of(call), call.problem)),
            call.mask.size_bytes() + kBytesOfToken * static_cast<std::size_t>(call.problem.length)};
  }));
}

}  // namespace flashmask::jax
