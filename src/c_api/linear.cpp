// SPDX-License-Identifier: Apache-2.0
#include "plan/linear.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "c_api/execution.h"
#include "c_api/sized_struct.h"
#include "flashmask/linear_attention.h"
#include "flashmask/reference.h"

using flashmask::Execution;
using flashmask::LinearProblem;
using flashmask::LinearStates;
using flashmask::c_api::execute;
using flashmask::c_api::guard;
using flashmask::c_api::read_struct;
using flashmask::c_api::require;
using flashmask::c_api::to_tensor_view;

struct flashmask_linear_plan {
  flashmask::LinearPlan plan;
};

namespace {

LinearProblem to_linear_problem(const flashmask_linear_problem* problem) {
  const flashmask_linear_problem given = read_struct(problem, "problem");
  flashmask_problem device{};  // dtype and device are read as those of attention are
  device.struct_size = sizeof(device);
  device.dtype = given.dtype;
  device.device_type = given.device_type;
  device.device_index = given.device_index;
  device.scale = given.scale;
  const flashmask::Problem read = flashmask::c_api::to_problem(&device);
  return {.batch = given.batch,
          .length = given.length,
          .heads = given.heads,
          .key_heads = given.key_heads,
          .key_dim = given.key_dim,
          .value_dim = given.value_dim,
          .dtype = read.dtype,
          .device = read.device,
          .scale = read.scale,
          .normalize = given.normalize != 0};
}

LinearStates to_states(const std::string& name, const flashmask_tensor& state, const flashmask_tensor& normalizer,
                       const flashmask_tensor& log_scale) {
  return {to_tensor_view(state, name + "_state"), to_tensor_view(normalizer, name + "_normalizer"),
          to_tensor_view(log_scale, name + "_log_scale")};
}

/// Reads what both directions are given.
template <class Tensors, class Given>
Tensors with_inputs(const Given& t) {
  Tensors tensors;
  tensors.q = to_tensor_view(t.q, "q");
  tensors.k = to_tensor_view(t.k, "k");
  tensors.v = to_tensor_view(t.v, "v");
  tensors.log_forget = to_tensor_view(t.log_forget, "log_forget");
  tensors.log_input = to_tensor_view(t.log_input, "log_input");
  tensors.initial = to_states("initial", t.initial_state, t.initial_normalizer, t.initial_log_scale);
  tensors.o = to_tensor_view(t.o, "o");
  return tensors;
}

flashmask::LinearForwardTensors to_tensors(const flashmask_linear_forward_tensors& t) {
  auto tensors = with_inputs<flashmask::LinearForwardTensors>(t);
  tensors.final = to_states("final", t.final_state, t.final_normalizer, t.final_log_scale);
  return tensors;
}

flashmask::LinearBackwardTensors to_tensors(const flashmask_linear_backward_tensors& t) {
  auto tensors = with_inputs<flashmask::LinearBackwardTensors>(t);
  tensors.grad_o = to_tensor_view(t.grad_o, "grad_o");
  tensors.grad_final = to_states("grad_final", t.grad_final_state, t.grad_final_normalizer, {});
  tensors.grad_q = to_tensor_view(t.grad_q, "grad_q");
  tensors.grad_k = to_tensor_view(t.grad_k, "grad_k");
  tensors.grad_v = to_tensor_view(t.grad_v, "grad_v");
  tensors.grad_log_forget = to_tensor_view(t.grad_log_forget, "grad_log_forget");
  tensors.grad_log_input = to_tensor_view(t.grad_log_input, "grad_log_input");
  tensors.grad_initial = to_states("grad_initial", t.grad_initial_state, t.grad_initial_normalizer, {});
  return tensors;
}

/// The arrays of a call of the reference.
class ReferenceCall {
 public:
  ReferenceCall(const flashmask_mask* mask, const flashmask_linear_problem* problem,
                const flashmask_reference_linear_tensors* tensors)
      : mask_(require(mask, "mask").mask), problem_(to_linear_problem(problem)), t_(read_struct(tensors, "tensors")) {
    validate(problem_);
    const flashmask::Nodes found = flashmask::linear_nodes(mask_, problem_);
    nodes_ = std::ssize(found.begins);
    roots_ = std::ranges::count(found.parents, -1);
  }

  void forward() const {
    const auto out = flashmask::reference::linear_forward(problem_, mask_, inputs());
    copy(out.o, t_.o);
    copy(out.state, t_.final_state);
    copy(out.normalizer, t_.final_normalizer);
    copy(out.log_scale, t_.final_log_scale);
  }

  void backward() const {
    const LinearProblem& p = problem_;
    const auto grad = flashmask::reference::linear_backward(
        p, mask_, inputs(), span(t_.grad_o, values(), "grad_o"), optional(t_.grad_final_state, states(nodes_)),
        optional(t_.grad_final_normalizer, nodes_ * p.heads * p.key_dim));
    copy(grad.q, t_.grad_q);
    copy(grad.k, t_.grad_k);
    copy(grad.v, t_.grad_v);
    copy(grad.log_forget, t_.grad_log_forget);
    copy(grad.log_input, t_.grad_log_input);
    copy(grad.state, t_.grad_initial_state);
    copy(grad.normalizer, t_.grad_initial_normalizer);
  }

 private:
  using Span = std::span<const double>;

  static Span optional(const double* data, std::int64_t count) {
    return data == nullptr ? Span() : Span(data, static_cast<std::size_t>(count));
  }
  static Span span(const double* data, std::int64_t count, const char* name) {
    if (count > 0) require(data, name);
    return {data, static_cast<std::size_t>(count)};
  }
  static void copy(const std::vector<double>& from, double* to) {
    if (to != nullptr) std::ranges::copy(from, to);
  }

  std::int64_t tokens() const { return problem_.batch * problem_.length; }
  std::int64_t values() const { return tokens() * problem_.heads * problem_.value_dim; }
  std::int64_t states(std::int64_t count) const {
    return count * problem_.heads * problem_.key_dim * problem_.value_dim;
  }

  flashmask::reference::LinearInputs inputs() const {
    const LinearProblem& p = problem_;
    const std::int64_t keys = tokens() * p.key_heads * p.key_dim, lines = roots_ * p.heads;
    return {span(t_.q, keys, "q"),
            span(t_.k, keys, "k"),
            span(t_.v, values(), "v"),
            optional(t_.log_forget, tokens() * p.heads),
            optional(t_.log_input, tokens() * p.heads),
            optional(t_.initial_state, states(roots_)),
            optional(t_.initial_normalizer, lines * p.key_dim),
            optional(t_.initial_log_scale, lines)};
  }

  const flashmask::Mask& mask_;
  const LinearProblem problem_;
  const flashmask_reference_linear_tensors t_;
  std::int64_t nodes_, roots_;
};

}  // namespace

flashmask_status flashmask_reference_linear_forward(const flashmask_mask* mask, const flashmask_linear_problem* problem,
                                                    const flashmask_reference_linear_tensors* tensors) {
  return guard([&] { ReferenceCall(mask, problem, tensors).forward(); });
}

flashmask_status flashmask_reference_linear_backward(const flashmask_mask* mask,
                                                     const flashmask_linear_problem* problem,
                                                     const flashmask_reference_linear_tensors* tensors) {
  return guard([&] { ReferenceCall(mask, problem, tensors).backward(); });
}

flashmask_status flashmask_linear_plan_create(const flashmask_mask* mask, const flashmask_linear_problem* problem,
                                              const char* kernel, flashmask_linear_plan** plan) {
  return guard([&] {
    require(plan, "plan");
    *plan = new flashmask_linear_plan{flashmask::linear_plan(require(mask, "mask").mask, to_linear_problem(problem),
                                                             kernel == nullptr ? "" : kernel)};
  });
}

void flashmask_linear_plan_destroy(flashmask_linear_plan* plan) { delete plan; }

flashmask_status flashmask_linear_plan_get(const flashmask_linear_plan* plan, flashmask_linear_plan_view* view) {
  return guard([&] {
    const flashmask::LinearPlan& made = require(plan, "plan").plan;
    flashmask_linear_plan_view read{};
    read.nodes = std::ssize(made.nodes().begins);
    read.roots = made.roots();
    read.kernel = made.kernel().c_str();
    flashmask::c_api::write_struct(read, view, "view");
  });
}

flashmask_status flashmask_linear_forward_workspace(const flashmask_linear_plan* plan,
                                                    const flashmask_linear_forward_tensors* tensors, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes") =
        flashmask::linear_workspace_bytes(require(plan, "plan").plan, to_tensors(read_struct(tensors, "tensors")));
  });
}

flashmask_status flashmask_linear_backward_workspace(const flashmask_linear_plan* plan,
                                                     const flashmask_linear_backward_tensors* tensors, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes") =
        flashmask::linear_workspace_bytes(require(plan, "plan").plan, to_tensors(read_struct(tensors, "tensors")));
  });
}

flashmask_status flashmask_linear_forward(const flashmask_linear_plan* plan,
                                          const flashmask_linear_forward_tensors* tensors,
                                          const flashmask_execution* execution) {
  return guard([&] {
    const flashmask::LinearPlan& ready = require(plan, "plan").plan;
    const auto views = to_tensors(read_struct(tensors, "tensors"));
    execute(execution, [&](const Execution& where) { flashmask::linear_forward(ready, views, where); });
  });
}

flashmask_status flashmask_linear_backward(const flashmask_linear_plan* plan,
                                           const flashmask_linear_backward_tensors* tensors,
                                           const flashmask_execution* execution) {
  return guard([&] {
    const flashmask::LinearPlan& ready = require(plan, "plan").plan;
    const auto views = to_tensors(read_struct(tensors, "tensors"));
    execute(execution, [&](const Execution& where) { flashmask::linear_backward(ready, views, where); });
  });
}
