// SPDX-License-Identifier: Apache-2.0
#include "jax/cpu_reference.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "flashmask/reference.h"

namespace flashmask::jax {
namespace {

std::span<double> doubles(const TensorView& tensor) {
  if (!tensor.present()) return {};
  const std::int64_t count =
      std::accumulate(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, std::int64_t{1}, std::multiplies());
  return {static_cast<double*>(tensor.data), static_cast<std::size_t>(count)};
}

/// The operands of a function of scores.
template <typename Tensors>
std::vector<ScoreOperand> operands_of(const Call& call, const Tensors& tensors) {
  std::vector<ScoreOperand> found;
  for (const TensorView& each : tensors.operands)
    if (each.present() && call.problem.change.function() != nullptr) found.push_back({doubles(each), each.shape});
  return found;
}

template <typename Tensors>
reference::Inputs inputs_of(const Tensors& tensors, const std::vector<double>& dropout,
                            const std::vector<ScoreOperand>& operands) {
  return {.q = doubles(tensors.q),
          .k = doubles(tensors.k),
          .v = doubles(tensors.v),
          .dropout = dropout,
          .sinks = doubles(tensors.sinks),
          .alibi_slopes = doubles(tensors.alibi.slopes),
          .query_positions = doubles(tensors.alibi.query_positions),
          .key_positions = doubles(tensors.alibi.key_positions),
          .bias = doubles(tensors.bias.values),
          .bias_shape = tensors.bias.values.shape,
          .bias_origin = tensors.bias.origin,
          .operands = operands};
}

/// Writes a result where it is wanted.
void write(const std::vector<double>& values, const TensorView& to) {
  if (to.present()) std::ranges::copy(values, doubles(to).begin());
}

}  // namespace

void reference_forward(const Call& call, const ForwardTensors& tensors, Executor& executor) {
  const auto dropout = dropout_factors(call.problem, dropout_state(call));
  const auto operands = operands_of(call, tensors);
  const auto outputs =
      reference::forward(call.problem, read_mask(call, executor), inputs_of(tensors, dropout, operands));
  write(outputs.o, tensors.o);
  write(outputs.lse, tensors.lse);
}

void reference_backward(const Call& call, const BackwardTensors& tensors, Executor& executor) {
  const auto dropout = dropout_factors(call.problem, dropout_state(call));
  const auto operands = operands_of(call, tensors);
  const auto gradients =
      reference::backward(call.problem, read_mask(call, executor), inputs_of(tensors, dropout, operands),
                          doubles(tensors.grad_o), doubles(tensors.grad_lse));
  write(gradients.q, tensors.grad_q);
  write(gradients.k, tensors.grad_k);
  write(gradients.v, tensors.grad_v);
  write(gradients.sinks, tensors.grad_sinks);
  write(gradients.bias, tensors.grad_bias);
}

}  // namespace flashmask::jax
