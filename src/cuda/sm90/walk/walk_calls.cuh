// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/padding_rows.h"
#include "cuda/sm90/instructions/tensor_map.h"
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
    clear_padding(launcher_, t.o, tables_.padding, tables_.paddings);
    with_walk_shape<T>(problem_, [&](auto shape) { walk<decltype(shape)>(t); });
  }

 private:
  template <class Shape>
  void walk(const LinearForwardTensors& t) {
    WalkArguments walk{};
    if (!launcher_.counts()) {
      walk.maps = {make_tensor_map("linear_forward: q", t.q, kWalkTokens),
                   make_tensor_map("linear_forward: k", t.k, kWalkTokens),
                   make_tensor_map("linear_forward: v", t.v, kWalkTokens),
                   make_tensor_map("linear_forward: o", t.o, kWarpRows), make_tensor_map("linear_forward: o", t.o, 1)};
    }
    walk.visits = tables_.visits, walk.begins = tables_.begins;
    walk.log_forget = gate_tensor(t.log_forget), walk.log_input = gate_tensor(t.log_input);
    walk.initial = states_of(t.initial), walk.final = states_of(t.final);
    walk.initial_scale = scales_of(t.initial), walk.final_scale = scales_of(t.final);
    walk.scaled = t.log_input.present() || walk.initial_scale.data != nullptr || walk.final_scale.data != nullptr;
    walk.inner_group = static_cast<int>(problem_.heads / problem_.key_heads), walk.column_group = 1;
    walk.once = walk.inner_group == 1 && slices_of(problem_) == 1;
    walk.scale = problem_.query_scale();
    walk.inner_dim = static_cast<int>(problem_.key_dim), walk.column_dim = static_cast<int>(problem_.value_dim);
    allocate_slots<Shape>(walk);
    launcher_.template launch<WalkMemory<Shape>>("linear attention: the walk", walk_kernel<Shape>, tables_.blocks,
                                                 Shape::kThreads, walk);
  }

  template <class Shape>
  void allocate_slots(WalkArguments& walk) {
    walk.slots_per_block = tables_.slots;
    const std::int64_t slots = static_cast<std::int64_t>(tables_.blocks) * tables_.slots;
    if (slots == 0) return;
    walk.slots = allocate<float4>(slots * 16 * Shape::kParts * 128 * Shape::kStateGroups);
    walk.slot_vectors = allocate<float>(slots * Shape::kInner);
    walk.slot_scales = allocate<double>(slots * 32);
  }
  template <class Number>
  Number* allocate(std::int64_t count) {
    return static_cast<Number*>(launcher_.allocate(static_cast<std::size_t>(count) * sizeof(Number)));
  }

  const LinearProblem& problem_;
  const WalkTables& tables_;
  Launcher& launcher_;
};

}  // namespace flashmask::cuda::sm90
