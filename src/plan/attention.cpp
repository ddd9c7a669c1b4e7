// SPDX-License-Identifier: Apache-2.0
#include "flashmask/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/bodies.h"
#include "flashmask/error.h"
#include "flashmask/features.h"
#include "plan/bias_rows.h"
#include "plan/dropout.h"
#include "plan/executor_of.h"
#include "plan/gather.h"
#include "plan/plan_choice.h"
#include "plan/tensor_checks.h"
#include "plan/workspace.h"

namespace flashmask {
namespace {

std::byte* align(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<std::byte*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

/// Returns the executor of a call; calls on a GPU run no tasks on the host.
Executor& executor_of(const Plan& plan, const Execution& execution) {
  if (plan.problem().device.type != DeviceType::cpu) return serial_executor();
  return executor_of(execution);
}

/// The executor, workers and memory of one call: the caller's, or the library's own.
class CallResources {
 public:
  CallResources(const Plan& plan, Direction direction, const Execution& execution)
      : CallResources(plan, to_string(direction), execution,
                      [&](int workers) { return plan.workspace_bytes(direction, workers); }) {}

  /// `bytes_for` says how many bytes a number of workers needs.
  template <class BytesFor>
  CallResources(const Plan& plan, const std::string& call, const Execution& execution, const BytesFor& bytes_for)
      : problem_(plan.problem()),
        executor_(executor_of(plan, execution)),
        workers_(worker_count(executor_)),
        execution_(execution) {
    check_dropout(call, plan.problem(), execution.dropout, execution.dropout_place);
    const std::size_t needed = bytes_for(workers_);
    const bool on_host = plan.problem().device.type == DeviceType::cpu;
    if (on_host && execution.dropout_on_device != nullptr)
      throw Error(Status::invalid_argument, call +
                                                ": dropout_on_device is given but the plan is for "
                                                "the CPU; give seed and offset themselves");
    if (on_host && execution.workspace == nullptr) {
      own_ = allocate_workspace(call, needed, workers_);
      workspace_ = own_.get();
      return;
    }
    const std::size_t given = execution.workspace == nullptr ? 0 : execution.workspace_bytes;
    if (given < needed)
      throw Error(Status::invalid_argument, call + ": the workspace has " + std::to_string(given) +
                                                (on_host ? " bytes; expected " : " bytes on the device; expected ") +
                                                std::to_string(needed) + ", which workspace_bytes() says for " +
                                                std::to_string(workers_) + " workers");
    workspace_ = align(execution.workspace);
  }

  KernelExecution kernel_execution() const {
    return {.executor = executor_,
            .workers = workers_,
            .workspace = workspace_,
            .dropout = execution_.dropout,
            .dropout_place = dropout_tables(problem_, execution_.dropout_place),
            .stream = execution_.stream,
            .dropout_on_device = execution_.dropout_on_device};
  }

 private:
  const Problem& problem_;
  Executor& executor_;
  int workers_;
  const Execution& execution_;
  Workspace own_;
  std::byte* workspace_ = nullptr;
};

/// Returns the option by which a plan moves tokens.
std::string moving_option(const Plan& plan) { return PlanAccess::reorders(plan) ? "`reorder`" : "`invariant`"; }

/// `sinks` is absent where the call has none.
void check_sinks(const std::string& call, const Plan& plan, const Kernel& kernel, const TensorView& sinks) {
  if (!sinks.present()) return;
  if (!kernel.info().features.has(Feature::sinks))
    throw Error(Status::unsupported, call + ": sinks are given, and " + kernel.info().name + " has no " +
                                         to_string(Feature::sinks) + "; leave them out, or take another kernel");
  if (sinks.rank == 3 && PlanAccess::moves_tokens(plan, kernel.info().direction))
    throw Error(Status::unsupported,
                call + ": sinks are given for each row, and the plan moves rows; make the plan without " +
                    moving_option(plan) + ", or give a sink for each head");
}

/// `max_scores` is absent where the call does not want them.
void check_max_scores(const Kernel& kernel, const TensorView& max_scores) {
  if (max_scores.present() && !kernel.info().features.has(Feature::max_scores))
    throw Error(Status::unsupported, "forward: max_scores is given, and " + kernel.info().name + " has no " +
                                         to_string(Feature::max_scores) + "; leave it out, or take another kernel");
}

/// Tangents on a GPU are those under a cap and a bias alone.
void check_change_of_tangents(const Plan& plan) {
  if (plan.problem().device.type == DeviceType::cpu || plan.problem().change.is_cap_and_bias()) return;
  throw Error(Status::unsupported,
              "forward_tangents: it was asked for on a GPU, which computes it under a factor, a cap, then a bias at "
              "most, and the change is " +
                  plan.problem().change.text() + "; leave it out, or compute on the CPU");
}

/// Returns the kernel that computes a plan's tangents; throws where there is none.
const ForwardKernel& kernel_of_tangents(const Plan& plan) {
  const ForwardKernel& kernel = PlanAccess::forward(plan);
  if (!kernel.has_tangents())
    throw Error(Status::unsupported,
                "forward_tangents: " + kernel.info().name +
                    " has no tangents; on a GPU the kernels of mma.sync have them, for heads of up to 128 dims: make "
                    "the plan with kernel \"sm8\", or compute on the CPU");
  check_change_of_tangents(plan);
  if (PlanAccess::moves_tokens(plan, Direction::forward))
    throw Error(Status::unsupported,
                "forward_tangents: the plan moves tokens; make the plan without " + moving_option(plan));
  return kernel;
}

void check_bias_gradient(const Plan& plan, const BackwardTensors& tensors) {
  if (tensors.grad_bias.present() && PlanAccess::places(plan) != nullptr)
    throw Error(
        Status::unsupported,
        "backward: grad_bias is given, and the plan is invariant; the gradient of a bias is a sum over the whole "
        "call, which no document has alone: make the plan without `invariant`, or leave grad_bias out");
}

void check_sink_gradients(const Plan& plan, const BackwardTensors& tensors) {
  if (tensors.grad_sinks.present() && PlanAccess::is_invariant(plan))
    throw Error(Status::unsupported,
                "backward: grad_sinks is given, and the plan is invariant; the gradient of a sink is a sum over the "
                "whole call, which no document has alone: make the plan without `invariant`, or leave grad_sinks out");
}

void check_key_gradients(const Plan& plan, const Kernel& kernel, const BackwardTensors& tensors) {
  if (!has_float32_key_gradients(plan.problem(), tensors)) return;
  const std::string given = "backward: grad_k and grad_v are f32 beside tensors of " + to_string(plan.problem().dtype);
  if (!kernel.info().features.has(Feature::float32_key_gradients))
    throw Error(Status::unsupported, given + ", and " + kernel.info().name + " has no " +
                                         to_string(Feature::float32_key_gradients) + "; give them in " +
                                         to_string(plan.problem().dtype) + ", or take another kernel");
  if (PlanAccess::moves_tokens(plan, Direction::backward))
    throw Error(Status::unsupported, given + ", and the plan moves tokens; make the plan without " +
                                         moving_option(plan) + ", or give them in " + to_string(plan.problem().dtype));
}

/// Runs a kernel of a plan, on gathered tensors where the plan moves tokens.
template <class Kernel, class Tensors>
void run(const Kernel& kernel, const Plan& plan, const Tensors& tensors, KernelExecution execution) {
  const Direction direction = kernel.info().direction;
  const Plan& seen = PlanAccess::of_kernel(plan, direction);
  if (!PlanAccess::moves_tokens(plan, direction)) {
    kernel.run(seen, tensors, execution);
    return;
  }
  const bool on_host = plan.problem().device.type == DeviceType::cpu;
  const auto mover =
      on_host ? host_mover(*plan.reordering(), execution.executor) : device_mover(seen, execution.stream);
  TokenGatherer gatherer(*mover, execution.workspace, seen.problem());
  const Tensors gathered = gatherer.gather(tensors);
  execution.workspace += gathered_bytes(seen.problem(), direction);
  kernel.run(seen, gathered, execution);
  gatherer.scatter(gathered, tensors);
}

/// Clears grad_bias where nothing adds to it.
void clear_bias(const TensorView& grad_bias) {
  if (!grad_bias.present()) return;
  if (grad_bias.device.type != DeviceType::cpu)
    throw Error(Status::unsupported,
                "backward: grad_bias of a batch of 0 on a GPU, where no kernel runs; it is 0, leave it out");
  for (std::int64_t list = 0; list < grad_bias.shape[0] * grad_bias.shape[1]; ++list)
    for (std::int64_t row = 0; row < grad_bias.shape[2]; ++row) clear_bias_row(grad_bias, list, row);
}

/// Clears grad_sinks where there are no rows to add to it.
void clear_sinks(const TensorView& grad_sinks) {
  if (!grad_sinks.present() || grad_sinks.rank == 3 || grad_sinks.shape[0] == 0) return;
  if (grad_sinks.device.type != DeviceType::cpu)
    throw Error(Status::unsupported,
                "backward: grad_sinks of a batch of 0 on a GPU, where no kernel runs; they are 0, leave them out");
  std::memset(grad_sinks.data, 0, static_cast<std::size_t>(grad_sinks.shape[0]) * size_in_bytes(grad_sinks.dtype));
}

}  // namespace

void forward(const Plan& plan, const ForwardTensors& tensors, const Execution& execution) {
  check_tensors(plan.problem(), tensors);
  check_sinks("forward", plan, PlanAccess::forward(plan), tensors.sinks);
  check_max_scores(PlanAccess::forward(plan), tensors.max_scores);
  if (plan.problem().batch == 0 || plan.problem().query_heads == 0 || plan.problem().query_length == 0) return;
  const CallResources resources(plan, Direction::forward, execution);
  run(PlanAccess::forward(plan), plan, tensors, resources.kernel_execution());
}

void backward(const Plan& plan, const BackwardTensors& tensors, const Execution& execution) {
  check_tensors(plan.problem(), tensors);
  check_sinks("backward", plan, PlanAccess::backward(plan), tensors.sinks);
  check_sink_gradients(plan, tensors);
  check_bias_gradient(plan, tensors);
  check_key_gradients(plan, PlanAccess::backward(plan), tensors);
  if (plan.problem().batch == 0 || plan.problem().query_heads == 0) {
    clear_bias(tensors.grad_bias);
    return clear_sinks(tensors.grad_sinks);
  }
  const CallResources resources(plan, Direction::backward, execution);
  run(PlanAccess::backward(plan), plan, tensors, resources.kernel_execution());
}

void forward_tangents(const Plan& plan, const TangentTensors& tensors, const Execution& execution) {
  const ForwardKernel& kernel = kernel_of_tangents(plan);
  check_tensors(plan.problem(), tensors);
  check_sinks("forward_tangents", plan, kernel, tensors.sinks);
  if (plan.problem().batch == 0 || plan.problem().query_heads == 0 || plan.problem().query_length == 0) return;
  const CallResources resources(plan, "forward_tangents", execution,
                                [&](int workers) { return tangents_workspace_bytes(plan, workers); });
  kernel.run_tangents(plan, tensors, resources.kernel_execution());
}

std::size_t tangents_workspace_bytes(const Plan& plan, int workers) {
  return kernel_of_tangents(plan).tangents_workspace_bytes(PlanAccess::problem_in_places(plan), std::max(workers, 1)) +
         kWorkspaceAlignment;
}

}  // namespace flashmask
