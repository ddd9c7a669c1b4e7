// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/linear_entry.h"

#include <initializer_list>
#include <memory>
#include <utility>

#include "cuda/common/row_checks.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"
#include "plan/device_plan.h"

namespace flashmask::cuda {
namespace {

void check_alignment(const char* call, std::initializer_list<std::pair<const char*, const TensorView*>> tensors) {
  for (const auto& [name, tensor] : tensors) check_rows((std::string(call) + ": " + name).c_str(), *tensor);
}

void check_alignment(const LinearForwardTensors& t) {
  check_alignment("linear_forward", {{"q", &t.q}, {"k", &t.k}, {"v", &t.v}, {"o", &t.o}});
}
void check_alignment(const LinearBackwardTensors& t) {
  check_alignment("linear_backward", {{"q", &t.q},
                                      {"k", &t.k},
                                      {"v", &t.v},
                                      {"o", &t.o},
                                      {"grad_o", &t.grad_o},
                                      {"grad_q", &t.grad_q},
                                      {"grad_k", &t.grad_k},
                                      {"grad_v", &t.grad_v}});
}

}  // namespace

std::string dims_refusal(const LinearProblem& problem, std::int64_t most_keys, std::int64_t most_values) {
  struct Dim {
    const char* name;
    std::int64_t given, most;
  };
  for (const Dim& dim : {Dim{"key_dim", problem.key_dim, most_keys}, Dim{"value_dim", problem.value_dim, most_values}})
    if (dim.given > dim.most || dim.given % 8 != 0)
      return std::string(dim.name) + " is " + std::to_string(dim.given) + "; expected a multiple of 8 up to " +
             std::to_string(dim.most) + " on a GPU: pad with zeros, or give CPU tensors";
  return "";
}

/// A problem without heads has nothing prepared, and its calls launch nothing.
template <class Tensors>
std::size_t LinearEntry::bytes_of(const LinearPlanContent& plan, const Tensors& tensors) const {
  return plan.problem.heads == 0 ? 0 : launch(plan, tensors, nullptr, nullptr);
}

template <class Tensors>
void LinearEntry::run(const char* call, const LinearPlanContent& plan, const Tensors& tensors,
                      const Execution& execution) const {
  check_alignment(tensors);
  const CurrentDevice current(plan.problem.device);
  const std::size_t bytes = bytes_of(plan, tensors);
  std::shared_ptr<void> own;
  void* workspace = execution.workspace;
  if (workspace == nullptr) {
    own = device_memory(plan.problem.device, execution.stream, bytes);
    workspace = own.get();
  } else if (execution.workspace_bytes < bytes) {
    throw Error(Status::invalid_argument, std::string(call) + ": the workspace has " +
                                              std::to_string(execution.workspace_bytes) + " bytes; expected " +
                                              std::to_string(bytes) + ", as linear_workspace_bytes() says");
  }
  launch(plan, tensors, static_cast<std::byte*>(workspace), execution.stream);
}

std::size_t LinearEntry::workspace_bytes(const LinearPlanContent& plan, const LinearForwardTensors& tensors) const {
  return bytes_of(plan, tensors);
}
std::size_t LinearEntry::workspace_bytes(const LinearPlanContent& plan, const LinearBackwardTensors& tensors) const {
  return bytes_of(plan, tensors);
}
void LinearEntry::forward(const LinearPlanContent& plan, const LinearForwardTensors& tensors,
                          const Execution& execution) const {
  run("linear_forward", plan, tensors, execution);
}
void LinearEntry::backward(const LinearPlanContent& plan, const LinearBackwardTensors& tensors,
                           const Execution& execution) const {
  run("linear_backward", plan, tensors, execution);
}

}  // namespace flashmask::cuda
