// SPDX-License-Identifier: Apache-2.0
#include "kit/placed_attention.h"

#include "flashmask/device_plan.h"

namespace flashmask::check {

PlacedTensors::PlacedTensors(const AttentionTensors& host, Device device) : device_(device) {
  const BackwardTensors from = host.backward();
  BackwardTensors& to = backward_;
  to.q = place(from.q, false);
  to.k = place(from.k, false);
  to.v = place(from.v, false);
  to.o = place(from.o, true);
  to.lse = place(from.lse, true);
  to.grad_o = place(from.grad_o, false);
  to.grad_lse = place(from.grad_lse, false);
  to.grad_q = place(from.grad_q, true);
  to.grad_k = place(from.grad_k, true);
  to.grad_v = place(from.grad_v, true);
  if (host.sinks) {
    to.sinks = place(from.sinks, false);
    to.grad_sinks = place(from.grad_sinks, true);
  }
  const auto place_optional = [&](const TensorView& tensor) {
    return tensor.present() ? place(tensor, false) : TensorView();
  };
  to.alibi = {place_optional(from.alibi.slopes), place_optional(from.alibi.query_positions),
              place_optional(from.alibi.key_positions)};
  to.bias = {place_optional(from.bias.values), from.bias.origin};
  if (host.grad_bias) to.grad_bias = place(from.grad_bias, true);
  for (std::size_t i = 0; i < host.operands.size(); ++i) to.operands[i] = place(from.operands[i], false);
  forward_ = {to.q, to.k, to.v, to.o, to.lse, to.sinks, to.alibi, to.bias, {}, to.operands};
  max_scores_ = place(host.max_scores.view(), true);
}

TensorView PlacedTensors::place(const TensorView& host, bool result) {
  if (device_.type == DeviceType::cpu) return host;
  const DeviceTensor& copy = copies_.emplace_back(host, device_);
  if (result) results_.push_back(&copy);
  return copy.view();
}

void PlacedTensors::fetch() const {
  for (const DeviceTensor* result : results_) result->download();
}

PlacedPlan::PlacedPlan(const Mask& mask, const Problem& problem, const PlanOptions& options) {
  if (problem.device.type == DeviceType::cpu) {
    plan_ = flashmask::plan(mask, problem, options);
    return;
  }
  use_device(problem.device);
  memory_.emplace(plan_bytes(mask, problem, options));
  plan_ = flashmask::plan(mask, problem, PlanPlace{nullptr, memory_->data(), memory_->bytes()}, options);
}

void PlacedPlan::forward(const ForwardTensors& tensors, Execution execution) {
  flashmask::forward(plan(), tensors, with_workspace(Direction::forward, execution));
}

void PlacedPlan::backward(const BackwardTensors& tensors, Execution execution) {
  flashmask::backward(plan(), tensors, with_workspace(Direction::backward, execution));
}

Execution PlacedPlan::with_workspace(Direction direction, Execution execution) {
  if (!memory_) return execution;
  std::optional<DeviceMemory>& workspace = direction == Direction::forward ? forward_workspace_ : backward_workspace_;
  if (!workspace) workspace.emplace(plan().workspace_bytes(direction, 1));
  execution.workspace = workspace->data();
  execution.workspace_bytes = workspace->bytes();
  return execution;
}

}  // namespace flashmask::check
