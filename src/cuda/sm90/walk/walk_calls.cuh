// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda/common/group_sums.cuh"
#include "cuda/common/padding_rows.h"
#include "cuda/common/tensor_views.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/walk/divisor_gradient.cuh"
#include "cuda/sm90/walk/gate_gradient.h"
#include "cuda/sm90/walk/reverse_kernel.cuh"
#include "cuda/sm90/walk/walk_kernel.cuh"
#include "cuda/sm90/walk/walk_tables.h"
#include "flashmask/linear_attention.h"

namespace flashmask::cuda::sm90 {

/// Calls body(a value whose type is the shape of a problem's walk).
template <class T, class Body>
void with_walk_shape(const LinearProblem& problem, const Body& body) {
  const auto with_vector = [&](auto inner, auto columns) {
    if (problem.normalize)
      body(WalkShape<T, inner, columns, true>());
    else
      body(WalkShape<T, inner, columns, false>());
  };
  using Narrow = std::integral_constant<int, 64>;
  using Middle = std::integral_constant<int, 128>;
  using Wide = std::integral_constant<int, 256>;
  if (problem.key_dim > 128)
    with_vector(Wide(), Middle());
  else if (slice_columns(problem) == 64)
    with_vector(Middle(), Narrow());
  else
    with_vector(Middle(), Middle());
}

/// The launches of a call of linear attention. Launcher: as in linear_launcher.cuh.
template <class T, class Launcher>
class WalkCalls {
 public:
  WalkCalls(const LinearProblem& problem, const WalkTables& tables, Launcher& launcher)
      : problem_(problem), tables_(tables), launcher_(launcher) {}

  void forward(const LinearForwardTensors& t) {
    clear(t.o);
    WalkArguments walk = output_walk(t);
    walk.final = states_of(t.final), walk.final_scale = scales_of(t.final);
    walk.scaled = walk.scaled || walk.final_scale.data != nullptr;
    with_walk_shape<T>(problem_, [&](auto shape) { launch_walk<decltype(shape)>(walk, tables_.forward); });
  }

  void backward(const LinearBackwardTensors& t) {
    for (const TensorView* each : {&t.grad_v, &t.grad_log_forget, &t.grad_log_input}) clear(*each);
    const bool wants_gates = t.grad_log_forget.present() || t.grad_log_input.present();
    allocate_parts_of(t, wants_gates || problem_.normalize);
    if (key_parts() > 1) key_parts_ = allocate_parts(launcher_, t.grad_q, key_parts());
    if (key_slices(problem_) > 1) value_parts_ = allocate_parts(launcher_, t.grad_v, key_slices(problem_));
    if (rows_.given) find_rows(t);
    if (problem_.normalize)
      walk_queries<true, true>(t), walk_back<true, true>(t);
    else if (wants_gates)
      walk_queries<true, false>(t), walk_back<true, false>(t);
    else
      walk_queries<false, false>(t), walk_back<false, false>(t);
    if (!wants_gates) return;
    const GateGradientArguments gates{tables_.steps, static_cast<int>(problem_.heads), parts_,
                                      gate_gradients(t.grad_log_forget), gate_gradients(t.grad_log_input)};
    launcher_.template launch<int>("linear attention: gradients of gates", gate_gradient_kernel,
                                   problem_.heads * tables_.step_count, kWalkTokens, gates);
  }

 private:
  int group() const { return static_cast<int>(problem_.heads / problem_.key_heads); }
  int gradient_slices() const { return key_slices(problem_) * value_slices(problem_); }
  /// The number of parts that are added up to ∂q or ∂k of a head: of heads that share it, times slices of values.
  int key_parts() const { return group() * value_slices(problem_); }
  void clear(const TensorView& to) { clear_padding(launcher_, to, tables_.padding, tables_.paddings); }

  template <class Number>
  Number* allocate(std::int64_t count) {
    return static_cast<Number*>(launcher_.allocate(static_cast<std::size_t>(count) * sizeof(Number)));
  }

  /// The walk for o. Tensors: of a forward or a backward.
  template <class Tensors>
  WalkArguments output_walk(const Tensors& t) const {
    WalkArguments walk = basic_walk(t.log_forget);
    if (!launcher_.counts())
      walk.maps = {make_tensor_map("linear_attention: q", t.q, kWalkTokens),
                   make_tensor_map("linear_attention: k", t.k, kWalkTokens),
                   make_tensor_map("linear_attention: v", t.v, kWalkTokens),
                   make_tensor_map("linear_attention: o", t.o, kWarpRows),
                   make_tensor_map("linear_attention: o", t.o, 1),
                   {}};
    walk.log_input = gate_tensor(t.log_input);
    walk.initial = states_of(t.initial), walk.initial_scale = scales_of(t.initial);
    walk.scaled = t.log_input.present() || walk.initial_scale.data != nullptr;
    walk.inner_group = group(), walk.column_group = 1;
    walk.inner_slices = 1;
    walk.once = walk.inner_group == 1 && slices_of(problem_) == 1;
    walk.inner_dim = static_cast<int>(problem_.key_dim), walk.column_dim = static_cast<int>(problem_.value_dim);
    return walk;
  }

  WalkArguments basic_walk(const TensorView& log_forget) const {
    WalkArguments walk{};
    walk.log_forget = gate_tensor(log_forget);
    walk.scale = problem_.query_scale();
    return walk;
  }

  template <class Shape>
  void launch_walk(WalkArguments& walk, const VisitTable& table) {
    walk.visits = table.visits, walk.begins = table.begins;
    walk.slots_per_block = table.slots;
    const std::int64_t slots = static_cast<std::int64_t>(table.blocks) * table.slots;
    if (slots > 0) {
      walk.slots = allocate<float4>(slots * 16 * Shape::kParts * 128 * Shape::kStateGroups);
      walk.slot_vectors = allocate<float>(slots * Shape::kInner);
      walk.slot_scales = allocate<double>(slots * 32);
    }
    launcher_.template launch<WalkMemory<Shape>>("linear attention: the walk", walk_kernel<Shape>, table.blocks,
                                                 Shape::kThreads, walk);
  }

  /// Allocates what the walk for ∂q leaves for the walk back; gates: with the parts of their gradients.
  void allocate_parts_of(const LinearBackwardTensors& t, bool gates) {
    const std::int64_t of_slice = problem_.heads * tables_.step_count, steps = of_slice * gradient_slices(),
                       tokens = steps * kWalkTokens;
    parts_.steps = tables_.step_count, parts_.slices = gradient_slices();
    if (scales_states(t)) rows_.scale = allocate<double>(steps);
    if (gates) {
      parts_.states = allocate<uint4>(steps * 16 * 128);
      parts_.crossing = allocate<float>(tokens);
      parts_.of_queries = allocate<float>(tokens), parts_.of_keys = allocate<float>(tokens);
      parts_.across = allocate<float>(steps);
      if (t.grad_log_input.present()) parts_.of_inputs = allocate<float>(tokens);
    }
    if (!problem_.normalize) return;
    parts_.vectors = allocate<float>(steps * kReverseDim);
    rows_.result = allocate<float>(of_slice * kWalkTokens), rows_.divisor = allocate<float>(of_slice * kWalkTokens);
    rows_.given = gradient_slices() > 1;
  }

  static bool scales_states(const LinearBackwardTensors& t) {
    return t.log_input.present() || t.initial.log_scale.present();
  }

  /// ∂q is a walk of (∂o, v, k).
  template <bool kGates, bool kVector>
  void walk_queries(const LinearBackwardTensors& t) {
    using Shape = WalkShape<T, kReverseDim, kReverseDim, kVector, kGates>;
    const TensorView& out = key_parts() > 1 ? key_parts_ : t.grad_q;
    WalkArguments walk = basic_walk(t.log_forget);
    if (!launcher_.counts())
      walk.maps = {make_tensor_map("linear_backward: grad_o", t.grad_o, kWalkTokens),
                   make_tensor_map("linear_backward: v", t.v, kWalkTokens),
                   make_tensor_map("linear_backward: k", t.k, kWalkTokens),
                   make_tensor_map("linear_backward: grad_q", out, kWarpRows),
                   make_tensor_map("linear_backward: grad_q", out, 1),
                   make_tensor_map("linear_backward: q", t.q, kWalkTokens)};
    walk.log_input = gate_tensor(t.log_input);
    walk.scaled = scales_states(t);
    walk.initial = states_of(t.initial), walk.initial_scale = scales_of(t.initial);
    std::swap(walk.initial.key, walk.initial.value);  // columns are keys here
    walk.inner_group = 1, walk.column_group = group();
    walk.inner_slices = value_slices(problem_);
    walk.once = gradient_slices() == 1;
    walk.inner_dim = static_cast<int>(problem_.value_dim), walk.column_dim = static_cast<int>(problem_.key_dim);
    walk.parts = parts_, walk.rows = rows_;
    launch_walk<Shape>(walk, gradient_slices() == 1 ? tables_.forward : tables_.queries);
    finish(t.grad_q);
  }

  template <bool kGates, bool kVector>
  void walk_back(const LinearBackwardTensors& t) {
    using Shape = ReverseShape<T, kGates, kVector>;
    const TensorView& out = key_parts() > 1 ? key_parts_ : t.grad_k;
    const TensorView& of_values = value_parts_.present() ? value_parts_ : t.grad_v;
    ReverseArguments walk{};
    if (!launcher_.counts()) {
      walk.q = make_tensor_map("linear_backward: q", t.q, kWalkTokens);
      walk.k = make_tensor_map("linear_backward: k", t.k, kWalkTokens);
      walk.v = make_tensor_map("linear_backward: v", t.v, kWalkTokens);
      walk.g = make_tensor_map("linear_backward: grad_o", t.grad_o, kWalkTokens);
      walk.dk_rows = make_tensor_map("linear_backward: grad_k", out, kWarpRows);
      walk.dk_row = make_tensor_map("linear_backward: grad_k", out, 1);
      walk.dv_rows = make_tensor_map("linear_backward: grad_v", of_values, kWarpRows);
      walk.dv_row = make_tensor_map("linear_backward: grad_v", of_values, 1);
    }
    walk.visits = tables_.reverse.visits, walk.begins = tables_.reverse.begins;
    walk.log_forget = gate_tensor(t.log_forget), walk.log_input = gate_tensor(t.log_input);
    walk.scaled = scales_states(t);
    walk.group = group();
    walk.scale = problem_.query_scale();
    walk.key_dim = static_cast<int>(problem_.key_dim), walk.value_dim = static_cast<int>(problem_.value_dim);
    walk.key_slices = key_slices(problem_), walk.value_slices = value_slices(problem_);
    walk.grad_final = states_of(t.grad_final), walk.grad_initial = states_of(t.grad_initial);
    walk.slots_per_block = tables_.reverse.slots;
    const std::int64_t slots = static_cast<std::int64_t>(tables_.reverse.blocks) * tables_.reverse.slots;
    if (slots > 0) {
      walk.slots = allocate<float4>(slots * 32 * 128);
      walk.slot_vectors = allocate<float>(slots * Shape::kDim);
    }
    walk.parts = parts_, walk.rows = rows_;
    launcher_.template launch<ReverseMemory<Shape>>("linear attention: the walk back", reverse_kernel<Shape>,
                                                    tables_.reverse.blocks, Shape::kThreads, walk);
    finish(t.grad_k);
    if (value_parts_.present()) add_groups<T>(launcher_, value_parts_, t.grad_v, key_slices(problem_)), clear(t.grad_v);
  }

  /// Finds what rows are divided by, and its gradients.
  void find_rows(const LinearBackwardTensors& t) {
    WalkArguments walk = output_walk(t);
    walk.parts.steps = parts_.steps;
    walk.rows.result = rows_.result, walk.rows.divisor = rows_.divisor;
    if (problem_.key_dim > 128)
      launch_walk<WalkShape<T, 256, 128, true, false, true>>(walk, tables_.rows);
    else
      launch_walk<WalkShape<T, 128, 128, true, false, true>>(walk, tables_.rows);
    const DivisorGradientArguments divisors{tables_.steps,         static_cast<int>(problem_.heads),
                                            parts_.steps,          tensor_rows(t.o),
                                            tensor_rows(t.grad_o), rows_.divisor};
    launcher_.template launch<int>("linear attention: gradients of divisors", divisor_gradient_kernel<T>,
                                   problem_.heads * tables_.step_count, kDivisorThreads, divisors);
  }

  /// Adds up the parts of a gradient of q or k; sums of padding are no zeros, so it comes last.
  void finish(const TensorView& to) {
    if (key_parts() > 1) add_groups<T>(launcher_, key_parts_, to, key_parts());
    clear(to);
  }

  const LinearProblem& problem_;
  const WalkTables& tables_;
  Launcher& launcher_;
  GateParts parts_{};
  RowParts rows_{};
  TensorView key_parts_{}, value_parts_{};  ///< of ∂q and ∂k, and of ∂v, where they are sums
};

}  // namespace flashmask::cuda::sm90
