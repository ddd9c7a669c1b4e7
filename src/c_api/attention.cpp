// SPDX-License-Identifier: Apache-2.0
#include "flashmask/attention.h"

#include <array>
#include <span>
#include <string>
#include <vector>

#include "c_api/execution.h"
#include "c_api/plan.h"
#include "c_api/sized_struct.h"
#include "flashmask/merge.h"

using flashmask::Execution;
using flashmask::c_api::array;
using flashmask::c_api::borrow;
using flashmask::c_api::element_count;
using flashmask::c_api::execute;
using flashmask::c_api::guard;
using flashmask::c_api::read_optional_struct;
using flashmask::c_api::read_struct;
using flashmask::c_api::require;
using flashmask::c_api::to_direction;
using flashmask::c_api::to_problem;
using flashmask::c_api::to_tensor_view;
using flashmask::c_api::write_struct;

namespace {

template <typename Tensors>
flashmask::AlibiTensors to_alibi(const Tensors& tensors) {
  return {.slopes = to_tensor_view(tensors.alibi_slopes, "alibi_slopes"),
          .query_positions = to_tensor_view(tensors.query_positions, "query_positions"),
          .key_positions = to_tensor_view(tensors.key_positions, "key_positions")};
}

template <typename Tensors>
flashmask::BiasTensor to_bias(const Tensors& tensors) {
  return {to_tensor_view(tensors.bias, "bias"), tensors.bias_origin};
}

template <typename Tensors>
flashmask::ScoreOperands to_operands(const Tensors& tensors) {
  flashmask::ScoreOperands operands;
  for (std::size_t i = 0; i < operands.size(); ++i)
    operands[i] = to_tensor_view(tensors.operands[i], "operands[" + std::to_string(i) + "]");
  return operands;
}

flashmask::ForwardTensors to_forward_tensors(const flashmask_forward_tensors& tensors) {
  return {.q = to_tensor_view(tensors.q, "q"),
          .k = to_tensor_view(tensors.k, "k"),
          .v = to_tensor_view(tensors.v, "v"),
          .o = to_tensor_view(tensors.o, "o"),
          .lse = to_tensor_view(tensors.lse, "lse"),
          .sinks = to_tensor_view(tensors.sinks, "sinks"),
          .alibi = to_alibi(tensors),
          .bias = to_bias(tensors),
          .max_scores = to_tensor_view(tensors.max_scores, "max_scores"),
          .operands = to_operands(tensors)};
}

flashmask::BackwardTensors to_backward_tensors(const flashmask_backward_tensors& tensors) {
  return {.q = to_tensor_view(tensors.q, "q"),
          .k = to_tensor_view(tensors.k, "k"),
          .v = to_tensor_view(tensors.v, "v"),
          .o = to_tensor_view(tensors.o, "o"),
          .lse = to_tensor_view(tensors.lse, "lse"),
          .grad_o = to_tensor_view(tensors.grad_o, "grad_o"),
          .grad_lse = to_tensor_view(tensors.grad_lse, "grad_lse"),
          .grad_q = to_tensor_view(tensors.grad_q, "grad_q"),
          .grad_k = to_tensor_view(tensors.grad_k, "grad_k"),
          .grad_v = to_tensor_view(tensors.grad_v, "grad_v"),
          .sinks = to_tensor_view(tensors.sinks, "sinks"),
          .grad_sinks = to_tensor_view(tensors.grad_sinks, "grad_sinks"),
          .alibi = to_alibi(tensors),
          .bias = to_bias(tensors),
          .grad_bias = to_tensor_view(tensors.grad_bias, "grad_bias"),
          .operands = to_operands(tensors)};
}

flashmask::TangentTensors to_tangent_tensors(const flashmask_tangent_tensors& tensors) {
  return {.q = to_tensor_view(tensors.q, "q"),
          .k = to_tensor_view(tensors.k, "k"),
          .v = to_tensor_view(tensors.v, "v"),
          .o = to_tensor_view(tensors.o, "o"),
          .lse = to_tensor_view(tensors.lse, "lse"),
          .tangent_q = to_tensor_view(tensors.tangent_q, "tangent_q"),
          .tangent_k = to_tensor_view(tensors.tangent_k, "tangent_k"),
          .tangent_v = to_tensor_view(tensors.tangent_v, "tangent_v"),
          .tangent_o = to_tensor_view(tensors.tangent_o, "tangent_o"),
          .tangent_lse = to_tensor_view(tensors.tangent_lse, "tangent_lse"),
          .sinks = to_tensor_view(tensors.sinks, "sinks"),
          .alibi = to_alibi(tensors),
          .bias = to_bias(tensors),
          .operands = to_operands(tensors)};
}

/// Views of the tensors after the first two parts, `kinds` per part; messages name them by kind and part: lse3.
std::vector<flashmask::TensorView> to_more(const flashmask_tensor* more, std::int64_t parts,
                                           std::span<const char* const> kinds) {
  const std::array<std::int64_t, 2> sizes = {parts, std::ssize(kinds)};
  const auto all = array(more, static_cast<std::int64_t>(element_count(sizes, "more")), "more");
  std::vector<flashmask::TensorView> views;
  for (std::size_t i = 0; i < all.size(); ++i)
    views.push_back(to_tensor_view(all[i], kinds[i % kinds.size()] + std::to_string(i / kinds.size() + 3)));
  return views;
}

flashmask::MergeTensors to_merge_tensors(const flashmask_merge_tensors& tensors) {
  constexpr std::array<const char*, 2> kKinds = {"o", "lse"};
  flashmask::MergeTensors views{.parts = {{to_tensor_view(tensors.o1, "o1"), to_tensor_view(tensors.lse1, "lse1")},
                                          {to_tensor_view(tensors.o2, "o2"), to_tensor_view(tensors.lse2, "lse2")}},
                                .o = to_tensor_view(tensors.o, "o"),
                                .lse = to_tensor_view(tensors.lse, "lse")};
  const auto more = to_more(tensors.more, tensors.more_count, kKinds);
  for (std::size_t i = 0; i < more.size(); i += kKinds.size()) views.parts.push_back({more[i], more[i + 1]});
  return views;
}

flashmask::MergeGradients to_merge_gradients(const flashmask_merge_gradients& tensors) {
  constexpr std::array<const char*, 4> kKinds = {"o", "lse", "grad_o", "grad_lse"};
  flashmask::MergeGradients views{
      .parts = {{to_tensor_view(tensors.o1, "o1"), to_tensor_view(tensors.lse1, "lse1"),
                 to_tensor_view(tensors.grad_o1, "grad_o1"), to_tensor_view(tensors.grad_lse1, "grad_lse1")},
                {to_tensor_view(tensors.o2, "o2"), to_tensor_view(tensors.lse2, "lse2"),
                 to_tensor_view(tensors.grad_o2, "grad_o2"), to_tensor_view(tensors.grad_lse2, "grad_lse2")}},
      .o = to_tensor_view(tensors.o, "o"),
      .lse = to_tensor_view(tensors.lse, "lse"),
      .grad_o = to_tensor_view(tensors.grad_o, "grad_o"),
      .grad_lse = to_tensor_view(tensors.grad_lse, "grad_lse")};
  const auto more = to_more(tensors.more, tensors.more_count, kKinds);
  for (std::size_t i = 0; i < more.size(); i += kKinds.size())
    views.parts.push_back({more[i], more[i + 1], more[i + 2], more[i + 3]});
  return views;
}

flashmask::TileSize to_tile_size(std::int32_t value, const char* name) {
  return flashmask::c_api::enumerator(value, flashmask::TileSize::small, name);
}

/// Calls `run` with the Execution of a call with a plan of attention.
template <typename Run>
void execute_plan(const flashmask_execution* given, Run&& run) {
  const flashmask_execution execution = read_optional_struct(given, "execution");
  auto executor = borrow(execution.executor);
  run(Execution{executor ? &*executor : nullptr,
                execution.workspace,
                execution.workspace_bytes,
                execution.stream,
                {execution.dropout_seed, execution.dropout_offset},
                execution.dropout_on_device,
                flashmask::c_api::to_place(execution.dropout_place, execution.dropout_place_size)});
}

}  // namespace

flashmask::PlanOptions flashmask::c_api::to_plan_options(const flashmask_plan_options* options) {
  const flashmask_plan_options given = read_optional_struct(options, "options");
  return {.visit = to_visit(given.visit),
          .form = to_form(given.form),
          .kernel = given.kernel == nullptr ? "" : given.kernel,
          .reorder = given.reorder != 0,
          .deterministic = given.deterministic != 0,
          .invariant = given.invariant != 0,
          .forward_tiles = to_tile_size(given.forward_tiles, "options.forward_tiles"),
          .backward_tiles = to_tile_size(given.backward_tiles, "options.backward_tiles"),
          .skip_query_gradient = given.skip_query_gradient != 0,
          .skip_key_gradients = given.skip_key_gradients != 0,
          .compile_when_called = given.compile_when_called != 0,
          .compile_backward_later = given.compile_backward_later != 0};
}

flashmask_status flashmask_plan_create(const flashmask_mask* mask, const flashmask_problem* problem,
                                       const flashmask_plan_options* options, flashmask_plan** plan) {
  return guard([&] {
    require(plan, "plan");
    auto borrowed = borrow(read_optional_struct(options, "options").executor);
    flashmask::Executor& executor = borrowed ? *borrowed : flashmask::default_executor();
    *plan = new flashmask_plan{flashmask::plan(require(mask, "mask").mask, to_problem(problem),
                                               flashmask::c_api::to_plan_options(options), executor)};
  });
}

void flashmask_plan_destroy(flashmask_plan* plan) { delete plan; }

flashmask_status flashmask_plan_kernel(const flashmask_plan* plan, int32_t direction, const char** name) {
  return guard([&] {
    require(name, "name");
    *name = require(plan, "plan").plan.kernel(to_direction(direction)).name.c_str();
  });
}

flashmask_status flashmask_plan_compiled_kernel(const flashmask_plan* plan, int32_t direction, int64_t index,
                                                flashmask_compiled_kernel* kernel) {
  return guard([&] {
    const auto all = require(plan, "plan").plan.compiled_kernels(to_direction(direction));
    flashmask_compiled_kernel to{};
    if (index >= 0 && index < std::ssize(all)) {
      const flashmask::CompiledKernel& from = all[static_cast<std::size_t>(index)];
      to.name = from.name.c_str();
      to.compiler = from.compiler.c_str();
      to.origin = static_cast<std::int64_t>(from.origin);
      to.seconds = from.seconds;
      to.spilled = from.spilled;
    }
    write_struct(to, kernel, "kernel");
  });
}

flashmask_status flashmask_plan_reordering(const flashmask_plan* plan, flashmask_reordering_view* view) {
  return guard([&] {
    const flashmask::Reordering* reordering = require(plan, "plan").plan.reordering();
    write_struct(reordering == nullptr ? flashmask_reordering_view{} : flashmask::c_api::to_view(*reordering), view,
                 "view");
  });
}

flashmask_status flashmask_plan_workspace(const flashmask_plan* plan, int32_t direction, int workers, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes");
    *bytes = require(plan, "plan").plan.workspace_bytes(to_direction(direction), workers);
  });
}

flashmask_status flashmask_forward(const flashmask_plan* plan, const flashmask_forward_tensors* tensors,
                                   const flashmask_execution* execution) {
  return guard([&] {
    const flashmask::Plan& ready = require(plan, "plan").plan;
    const auto views = to_forward_tensors(read_struct(tensors, "tensors"));
    execute_plan(execution, [&](const Execution& where) { flashmask::forward(ready, views, where); });
  });
}

flashmask_status flashmask_backward(const flashmask_plan* plan, const flashmask_backward_tensors* tensors,
                                    const flashmask_execution* execution) {
  return guard([&] {
    const flashmask::Plan& ready = require(plan, "plan").plan;
    const auto views = to_backward_tensors(read_struct(tensors, "tensors"));
    execute_plan(execution, [&](const Execution& where) { flashmask::backward(ready, views, where); });
  });
}

flashmask_status flashmask_forward_tangents(const flashmask_plan* plan, const flashmask_tangent_tensors* tensors,
                                            const flashmask_execution* execution) {
  return guard([&] {
    const flashmask::Plan& ready = require(plan, "plan").plan;
    const auto views = to_tangent_tensors(read_struct(tensors, "tensors"));
    execute_plan(execution, [&](const Execution& where) { flashmask::forward_tangents(ready, views, where); });
  });
}

flashmask_status flashmask_plan_tangents_workspace(const flashmask_plan* plan, int workers, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes");
    *bytes = flashmask::tangents_workspace_bytes(require(plan, "plan").plan, workers);
  });
}

flashmask_status flashmask_merge(const flashmask_merge_tensors* tensors, const flashmask_execution* execution) {
  return guard([&] {
    const auto views = to_merge_tensors(read_struct(tensors, "tensors"));
    execute(execution, [&](const Execution& where) { flashmask::merge(views, where); });
  });
}

flashmask_status flashmask_merge_backward(const flashmask_merge_gradients* tensors,
                                          const flashmask_execution* execution) {
  return guard([&] {
    const auto views = to_merge_gradients(read_struct(tensors, "tensors"));
    execute(execution, [&](const Execution& where) { flashmask::merge_backward(views, where); });
  });
}
