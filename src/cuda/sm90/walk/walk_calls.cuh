// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda/common/group_sums.cuh"
#include "cuda/common/padding_rows.h"
#include "cuda/sm90/instructions/tensor_map.h"
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
    with_walk_shape<T>(problem_, [&](auto shape) {
      WalkArguments walk = basic_walk(t.log_forget);
      if (!launcher_.counts())
        walk.maps = {make_tensor_map("linear_forward: q", t.q, kWalkTokens),
                     make_tensor_map("linear_forward: k", t.k, kWalkTokens),
                     make_tensor_map("linear_forward: v", t.v, kWalkTokens),
                     make_tensor_map("linear_forward: o", t.o, kWarpRows),
                     make_tensor_map("linear_forward: o", t.o, 1),
                     {}};
      walk.log_input = gate_tensor(t.log_input);
      walk.initial = states_of(t.initial), walk.final = states_of(t.final);
      walk.initial_scale = scales_of(t.initial), walk.final_scale = scales_of(t.final);
      walk.scaled = t.log_input.present() || walk.initial_scale.data != nullptr || walk.final_scale.data != nullptr;
      walk.inner_group = group(), walk.column_group = 1;
      walk.once = walk.inner_group == 1 && slices_of(problem_) == 1;
      walk.inner_dim = static_cast<int>(problem_.key_dim), walk.column_dim = static_cast<int>(problem_.value_dim);
      launch_walk<decltype(shape)>(walk);
    });
  }

  void backward(const LinearBackwardTensors& t) {
    for (const TensorView* each : {&t.grad_v, &t.grad_log_forget, &t.grad_log_input}) clear(*each);
    const bool wants_gates = t.grad_log_forget.present() || t.grad_log_input.present();
    allocate_parts_of(t, wants_gates || problem_.normalize);
    if (group() > 1) shared_gradient_ = allocate_parts(launcher_, t.grad_q, group());
    if (problem_.normalize)
      walk_queries<true, true>(t), walk_back<true, true>(t);
    else if (wants_gates)
      walk_queries<true, false>(t), walk_back<true, false>(t);
    else
      walk_queries<false, false>(t), walk_back<false, false>(t);
    if (!t.grad_log_forget.present()) return;
    const GateGradientArguments gates{tables_.steps, static_cast<int>(problem_.heads), parts_,
                                      gate_gradients(t.grad_log_forget)};
    launcher_.template launch<int>("linear attention: gradients of gates", gate_gradient_kernel,
                                   problem_.heads * tables_.step_count, kWalkTokens, gates);
  }

 private:
  int group() const { return static_cast<int>(problem_.heads / problem_.key_heads); }
  void clear(const TensorView& to) { clear_padding(launcher_, to, tables_.padding, tables_.paddings); }

  template <class Number>
  Number* allocate(std::int64_t count) {
    return static_cast<Number*>(launcher_.allocate(static_cast<std::size_t>(count) * sizeof(Number)));
  }

  WalkArguments basic_walk(const TensorView& log_forget) const {
    WalkArguments walk{};
    walk.visits = tables_.forward.visits, walk.begins = tables_.forward.begins;
    walk.log_forget = gate_tensor(log_forget);
    walk.scale = problem_.query_scale();
    return walk;
  }

  template <class Shape>
  void launch_walk(WalkArguments& walk) {
    walk.slots_per_block = tables_.forward.slots;
    const std::int64_t slots = static_cast<std::int64_t>(tables_.forward.blocks) * tables_.forward.slots;
    if (slots > 0) {
      walk.slots = allocate<float4>(slots * 16 * Shape::kParts * 128 * Shape::kStateGroups);
      walk.slot_vectors = allocate<float>(slots * Shape::kInner);
      walk.slot_scales = allocate<double>(slots * 32);
    }
    launcher_.template launch<WalkMemory<Shape>>("linear attention: the walk", walk_kernel<Shape>,
                                                 tables_.forward.blocks, Shape::kThreads, walk);
  }

  /// Allocates what the walk for ∂q leaves for the walk back; gates: with the parts of their gradients.
  void allocate_parts_of(const LinearBackwardTensors& t, bool gates) {
    const std::int64_t steps = problem_.heads * tables_.step_count, tokens = steps * kWalkTokens;
    parts_.steps = tables_.step_count;
    if (scales_states(t)) rows_.scale = allocate<double>(steps);
    if (gates) {
      parts_.states = allocate<uint4>(steps * 16 * 128);
      parts_.crossing = allocate<float>(tokens);
      parts_.of_queries = allocate<float>(tokens), parts_.of_keys = allocate<float>(tokens);
      parts_.across = allocate<float>(steps);
    }
    if (!problem_.normalize) return;
    parts_.vectors = allocate<float>(steps * kWidestReverse);
    rows_.result = allocate<float>(tokens), rows_.divisor = allocate<float>(tokens);
  }

  static bool scales_states(const LinearBackwardTensors& t) {
    return t.log_input.present() || t.initial.log_scale.present();
  }

  /// ∂q is a walk of (∂o, v, k).
  template <bool kGates, bool kVector>
  void walk_queries(const LinearBackwardTensors& t) {
    using Shape = WalkShape<T, kWidestReverse, kWidestReverse, kVector, kGates>;
    const TensorView& out = group() > 1 ? shared_gradient_ : t.grad_q;
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
    walk.once = true;
    walk.inner_dim = static_cast<int>(problem_.value_dim), walk.column_dim = static_cast<int>(problem_.key_dim);
    walk.parts = parts_, walk.rows = rows_;
    launch_walk<Shape>(walk);
    finish(t.grad_q);
  }

  template <bool kGates, bool kVector>
  void walk_back(const LinearBackwardTensors& t) {
    using Shape = ReverseShape<T, kGates, kVector>;
    const TensorView& out = group() > 1 ? shared_gradient_ : t.grad_k;
    ReverseArguments walk{};
    if (!launcher_.counts()) {
      walk.q = make_tensor_map("linear_backward: q", t.q, kWalkTokens);
      walk.k = make_tensor_map("linear_backward: k", t.k, kWalkTokens);
      walk.v = make_tensor_map("linear_backward: v", t.v, kWalkTokens);
      walk.g = make_tensor_map("linear_backward: grad_o", t.grad_o, kWalkTokens);
      walk.dk_rows = make_tensor_map("linear_backward: grad_k", out, kWarpRows);
      walk.dk_row = make_tensor_map("linear_backward: grad_k", out, 1);
      walk.dv_rows = make_tensor_map("linear_backward: grad_v", t.grad_v, kWarpRows);
      walk.dv_row = make_tensor_map("linear_backward: grad_v", t.grad_v, 1);
    }
    walk.visits = tables_.reverse.visits, walk.begins = tables_.reverse.begins;
    walk.log_forget = gate_tensor(t.log_forget), walk.log_input = gate_tensor(t.log_input);
    walk.grad_log_input = gate_gradients(t.grad_log_input);
    walk.scaled = scales_states(t);
    walk.group = group();
    walk.scale = problem_.query_scale();
    walk.key_dim = static_cast<int>(problem_.key_dim), walk.value_dim = static_cast<int>(problem_.value_dim);
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
  }

  /// Adds up the parts of a gradient of q or k where heads share it; sums of padding are no zeros, so it comes last.
  void finish(const TensorView& to) {
    if (group() > 1) add_groups<T>(launcher_, shared_gradient_, to, group());
    clear(to);
  }

  const LinearProblem& problem_;
  const WalkTables& tables_;
  Launcher& launcher_;
  GateParts parts_{};
  RowParts rows_{};
  TensorView shared_gradient_{};  ///< of q or k where heads share them, a head each
};

}  // namespace flashmask::cuda::sm90
