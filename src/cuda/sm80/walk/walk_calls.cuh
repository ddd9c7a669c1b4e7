// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/group_sums.cuh"
#include "cuda/common/padding_rows.h"
#include "cuda/common/tensor_views.h"
#include "cuda/sm80/walk/gradient_kernels.cuh"
#include "cuda/sm80/walk/link_arguments.cuh"
#include "cuda/sm80/walk/sums_kernel.cuh"
#include "cuda/sm80/walk/walk_kernel.cuh"
#include "cuda/sm80/walk/walk_plan.h"
#include "flashmask/linear_attention.h"

namespace flashmask::cuda::sm80 {

/// The launches of a call of linear attention for heads of up to kSliceDim dims. Launcher: has launch<Memory>(name,
/// kernel, blocks, threads, arguments) and allocate(bytes), whose memory lives until the launches are done.
template <class T, class Launcher>
class WalkCalls {
 public:
  /// view: plan's tables in memory of the device; padding: its tokens. divisors: of a slice of a head, which were found
  /// for all its slices; adds: gradients of gates are added to those of earlier slices.
  WalkCalls(const LinearProblem& problem, const WalkPlan& plan, const WalkPlanView& view, const std::int64_t* padding,
            Launcher& launcher, const WalkDivisors& divisors = {}, bool adds = false)
      : problem_(problem),
        plan_(plan),
        view_(view),
        padding_(padding),
        launcher_(launcher),
        divisors_(divisors),
        given_(divisors.factor != nullptr),
        adds_(adds) {}

  void forward(const LinearForwardTensors& t) {
    clear_padding(t.o);
    const bool every_state = t.initial.state.present() || t.final.state.present();
    find_states(t.q, t.k, t.v, t.log_forget, t.log_input, t.initial, t.final, every_state);
    WalkArguments walk = output_walk(t.q, t.k, t.v, t.initial);
    if (given_) walk.vector = WalkVector::none;
    set_out(walk, t.o);
    launch_walk(walk);
  }

  void backward(const LinearBackwardTensors& t) {
    for (const TensorView* each : {&t.grad_q, &t.grad_k, &t.grad_v, &t.grad_log_forget, &t.grad_log_input})
      clear_padding(*each);
    const bool every_state =
        t.initial.state.present() || t.grad_final.state.present() || t.grad_initial.state.present();
    find_states(t.q, t.k, t.v, t.log_forget, t.log_input, t.initial, {}, every_state);
    if (problem_.normalize && !given_) {
      divisors_ = {allocate<float>(token_heads()), allocate<float>(token_heads())};
      find_divisors(t, false, false);
      differentiate_divisors(t.o, t.grad_o);
    }
    find_state_gradients(t);
    const bool wants_gates = t.grad_log_forget.present() || t.grad_log_input.present();
    GateGradientArguments gates{};
    if (wants_gates) gates = gate_gradients(t);
    walk_queries(t, gates);
    walk_keys(t, gates);
    walk_values(t);
    if (wants_gates) launch_gate_gradients(gates);
  }

  /// Finds what rows of a slice's head are divided by; tensors: of a forward or a backward.
  template <class Tensors>
  void divide_slice(const Tensors& t, bool adds_sums, bool leaves_sums) {
    const LinearStates none{};
    find_states(t.q, t.k, t.v, t.log_forget, t.log_input, t.initial, none, t.initial.state.present());
    find_divisors(t, adds_sums, leaves_sums);
  }

  /// Multiplies what find_divisors() left by the products of o and its gradients.
  void differentiate_divisors(const TensorView& o, const TensorView& grad_o) {
    launcher_.template launch<int>("linear attention: gradients of divisors", walk_divisors_kernel<T>,
                                   stretches() * problem_.heads, kWalkThreads,
                                   DivisorArguments{view_, of_values(o), of_values(grad_o), divisors_.gradient});
  }

  std::int64_t token_heads() const { return step_heads() * kWalkTokens; }

 private:
  /// The shape, for all dims, of kernels that are a small part of a call.
  using Widest = WalkShape<T, 128, 128>;

  int group() const { return static_cast<int>(problem_.heads / problem_.key_heads); }
  std::int64_t stretches() const { return std::ssize(plan_.stretches); }
  std::int64_t step_heads() const { return problem_.heads * plan_.steps(); }

  template <class Number>
  Number* allocate(std::int64_t count) {
    return static_cast<Number*>(launcher_.allocate(static_cast<std::size_t>(count) * sizeof(Number)));
  }

  /// Calls body(a value whose type is the shape of walks over such dims).
  template <class Body>
  static void with_shape(std::int64_t inner, std::int64_t columns, const Body& body) {
    const auto with_columns = [&](auto inner_dim) {
      if (columns <= 64)
        body(WalkShape<T, inner_dim, 64>());
      else
        body(WalkShape<T, inner_dim, 128>());
    };
    if (inner <= 64)
      with_columns(std::integral_constant<int, 64>());
    else
      with_columns(std::integral_constant<int, 128>());
  }

  WalkTensor of_keys(const TensorView& tensor) const { return {tensor_rows(tensor), group()}; }
  WalkTensor of_values(const TensorView& tensor) const { return {tensor_rows(tensor), 1}; }
  /// Allocates one state for each stretch that has a place.
  WalkStates new_states() {
    WalkStates states{};
    const std::int64_t places = view_.every_state ? stretches() : plan_.linked;
    if (places == 0) return states;
    const std::int64_t matrix = problem_.key_dim * problem_.value_dim;
    const std::int64_t size = matrix + (problem_.normalize ? problem_.key_dim : 0);
    states.state = allocate<float>(places * problem_.heads * size);
    states.item = problem_.heads * size, states.head = size, states.key = problem_.value_dim, states.value = 1;
    if (problem_.normalize) states.vector = states.state + matrix;
    states.vector_item = states.item, states.vector_head = size;
    return states;
  }

  WalkArguments basic(WalkRole role) const {
    WalkArguments walk{};
    walk.plan = view_;
    walk.gates = gates_;
    walk.scale_behind = links_.scale_behind;
    walk.initial_scale = initial_scale_;
    walk.divisors = divisors_;
    walk.role = role;
    walk.scale = problem_.query_scale();
    return walk;
  }
  void set_dims(WalkArguments& walk, std::int64_t inner, std::int64_t columns) const {
    walk.inner_dim = static_cast<int>(inner);
    walk.column_dim = static_cast<int>(columns);
  }
  static void set_out(WalkArguments& walk, const TensorView& to) {
    walk.out = static_cast<std::uint16_t*>(to.data);
    walk.out_batch = to.strides[0], walk.out_row = to.strides[1], walk.out_head = to.strides[2];
  }

  WalkArguments output_walk(const TensorView& q, const TensorView& k, const TensorView& v,
                            const LinearStates& initial) {
    WalkArguments walk = basic(WalkRole::output);
    set_dims(walk, problem_.key_dim, problem_.value_dim);
    walk.vector = problem_.normalize ? WalkVector::inner : WalkVector::none;
    walk.x = of_keys(q), walk.y = of_keys(k), walk.z = of_values(v);
    walk.linked = states_;
    walk.given = states_of(initial);
    return walk;
  }

  template <class Memory>
  void launch_walk(void (*kernel)(WalkArguments), const WalkArguments& walk) {
    launcher_.template launch<Memory>("linear attention: a walk", kernel, stretches() * problem_.heads, kWalkThreads,
                                      walk);
  }
  void launch_walk(const WalkArguments& walk) {
    with_shape(walk.inner_dim, walk.column_dim, [&](auto shape) {
      using Shape = decltype(shape);
      const auto kernel = is_forward(walk.role) ? walk_kernel<Shape, true> : walk_kernel<Shape, false>;
      if (walk.counterpart.rows.data == nullptr)
        launch_walk<WalkMemory<Shape>>(kernel, walk);
      else
        launch_walk<CounterpartMemory<Shape>>(kernel, walk);
    });
  }

  /// Sums of gates, and the states behind stretches, of which final ones go to the caller.
  void find_states(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& log_forget,
                   const TensorView& log_input, const LinearStates& initial, const LinearStates& final,
                   bool every_state) {
    view_.every_state = every_state;
    const std::int64_t lines = stretches() * problem_.heads;
    gates_.tokens = allocate<double>(3 * token_heads());
    links_ = {allocate<double>(lines), allocate<double>(lines), allocate<double>(lines), allocate<float>(lines),
              allocate<float>(lines)};
    initial_scale_ = scales_of(initial);
    const GateArguments gates{view_, gate_tensor(log_forget), gate_tensor(log_input), gates_, links_};
    launcher_.template launch<GateMemory>("linear attention: gates", walk_gates_kernel, lines, kWalkThreads, gates);
    trees_ = every_state ? static_cast<int>(std::ssize(plan_.trees)) : plan_.linked_trees;
    if (trees_ == 0) return;
    const LinkArguments links{view_, trees_, initial_scale_, links_, scales_of(final)};
    launcher_.template launch<int>("linear attention: scales", walk_links_kernel,
                                   (trees_ * problem_.heads + kWalkThreads - 1) / kWalkThreads, kWalkThreads, links);
    states_ = new_states();
    SumsArguments sums{output_walk(q, k, v, initial), states_, false, every_state};
    sums.walk.y = of_keys(k);
    launch_sums(sums);
    const CarryArguments carry{view_,
                               trees_,
                               static_cast<int>(problem_.key_dim),
                               static_cast<int>(problem_.value_dim),
                               links_,
                               states_,
                               states_of(initial),
                               states_of(final),
                               WalkStates{}};
    launch_carry(walk_carry_kernel, carry);
  }

  void launch_sums(const SumsArguments& sums) {
    const std::int64_t count = view_.every_state ? stretches() : plan_.linked;
    with_shape(sums.walk.inner_dim, sums.walk.column_dim, [&](auto shape) {
      using Shape = decltype(shape);
      launcher_.template launch<SumsMemory<Shape>>("linear attention: sums of stretches", walk_sums_kernel<Shape>,
                                                   count * problem_.heads, kWalkThreads, sums);
    });
  }
  void launch_carry(void (*kernel)(CarryArguments), const CarryArguments& carry) {
    const std::int64_t chunks = (carry.numbers() + kCarryThreads - 1) / kCarryThreads;
    launcher_.template launch<int>("linear attention: states of stretches", kernel, trees_ * problem_.heads * chunks,
                                   kCarryThreads, carry);
  }

  /// Computes the divisors again, and minus what the products of o and its gradients are to be multiplied by.
  template <class Tensors>
  void find_divisors(const Tensors& t, bool adds_sums, bool leaves_sums) {
    WalkArguments walk = output_walk(t.q, t.k, {}, t.initial);
    walk.only_divisors = true;
    walk.adds_sums = adds_sums, walk.leaves_sums = leaves_sums;
    walk.z = {};
    launch_walk(walk);
  }

  /// The gradients of the states behind stretches; those of initial ones go to the caller.
  void find_state_gradients(const LinearBackwardTensors& t) {
    if (trees_ == 0) return;
    grads_ = new_states();
    const bool all = t.grad_initial.state.present();
    SumsArguments sums{basic(WalkRole::key_gradient), new_states(), true, all};
    set_dims(sums.walk, problem_.key_dim, problem_.value_dim);
    sums.walk.vector = problem_.normalize ? WalkVector::inner : WalkVector::none;
    sums.walk.y = of_keys(t.q), sums.walk.z = of_values(t.grad_o);
    launch_sums(sums);
    const CarryArguments carry{
        view_,  trees_,    static_cast<int>(problem_.key_dim), static_cast<int>(problem_.value_dim),
        links_, sums.sums, states_of(t.grad_initial),          states_of(t.grad_final),
        grads_};
    launch_carry(walk_carry_back_kernel, carry);
  }

  GateGradientArguments gate_gradients(const LinearBackwardTensors& t) {
    GateGradientArguments gates{};
    gates.walk = basic(WalkRole::query_gradient);
    gates.walk.x = of_values(t.grad_o), gates.walk.y = of_values(t.v);
    gates.q = of_keys(t.q), gates.k = of_keys(t.k);
    gates.scale = problem_.query_scale();
    gates.adds = adds_;
    gates.log_forget = cuda::gate_gradients(t.grad_log_forget);
    gates.log_input = cuda::gate_gradients(t.grad_log_input);
    of_queries_ = allocate<float>(token_heads());
    of_keys_ = allocate<float>(token_heads());
    gates.of_queries = of_queries_, gates.of_keys = of_keys_;
    if (!t.grad_log_forget.present()) return gates;
    with_shape(problem_.value_dim, problem_.key_dim, [&](auto shape) {
      using Shape = decltype(shape);
      kept_ = allocate<uint4>(step_heads() * Shape::kUnits * (Shape::kInner / 16) * kWalkThreads);
      if (problem_.normalize) kept_vectors_ = allocate<float>(step_heads() * Shape::kColumns);
    });
    gates.across = across_ = allocate<float>(step_heads());
    return gates;
  }

  void walk_queries(const LinearBackwardTensors& t, const GateGradientArguments& gates) {
    WalkArguments walk = basic(WalkRole::query_gradient);
    set_dims(walk, problem_.value_dim, problem_.key_dim);
    walk.vector = problem_.normalize ? WalkVector::columns : WalkVector::none;
    walk.x = of_values(t.grad_o), walk.y = of_values(t.v), walk.z = of_keys(t.k);
    if (gates.of_queries != nullptr) walk.counterpart = gates.q;
    walk.linked = states_;
    walk.given = states_of(t.initial);
    walk.dots = of_queries_;
    walk.states = kept_;
    walk.state_vectors = kept_vectors_;
    launch_for_keys(walk, t.grad_q);
  }

  /// Backwards, a walk begins with the gradient of the state behind its stretch.
  void set_gradients_behind(WalkArguments& walk, const LinearBackwardTensors& t) const {
    walk.linked = grads_;
    walk.linked_are_own = true;
    walk.all_have_own = t.grad_final.state.present();
  }

  void walk_keys(const LinearBackwardTensors& t, const GateGradientArguments& gates) {
    WalkArguments walk = basic(WalkRole::key_gradient);
    set_dims(walk, problem_.value_dim, problem_.key_dim);
    walk.vector = problem_.normalize ? WalkVector::columns : WalkVector::none;
    walk.x = of_values(t.v), walk.y = of_values(t.grad_o), walk.z = of_keys(t.q);
    if (gates.of_keys != nullptr) walk.counterpart = gates.k;
    set_gradients_behind(walk, t);
    walk.dots = of_keys_;
    walk.states = kept_;
    walk.state_vectors = kept_vectors_;
    walk.across = across_;
    launch_for_keys(walk, t.grad_k);
  }

  void walk_values(const LinearBackwardTensors& t) {
    WalkArguments walk = basic(WalkRole::value_gradient);
    set_dims(walk, problem_.key_dim, problem_.value_dim);
    walk.x = of_keys(t.k), walk.y = of_keys(t.q), walk.z = of_values(t.grad_o);
    set_gradients_behind(walk, t);
    set_out(walk, t.grad_v);
    launch_walk(walk);
  }

  /// Walks to a gradient of q or k, which heads of a group share: each writes its own, and then they are added up.
  void launch_for_keys(WalkArguments walk, const TensorView& to) {
    if (group() == 1) {
      set_out(walk, to);
      launch_walk(walk);
      return;
    }
    if (!parts_.present()) parts_ = allocate_parts(launcher_, to, group());
    set_out(walk, parts_);
    launch_walk(walk);
    add_groups<T>(launcher_, parts_, to, group());
    clear_padding(to);
  }

  void launch_gate_gradients(const GateGradientArguments& gates) {
    launcher_.template launch<GateGradientMemory<Widest>>(
        "linear attention: gradients of gates", walk_gate_gradient_kernel<Widest>, step_heads(), kWalkThreads, gates);
  }

  void clear_padding(const TensorView& to) { cuda::clear_padding(launcher_, to, padding_, std::ssize(plan_.padding)); }

  const LinearProblem& problem_;
  const WalkPlan& plan_;
  WalkPlanView view_;
  const std::int64_t* padding_;
  Launcher& launcher_;
  WalkGates gates_{};
  WalkLinks links_{};
  WalkScales initial_scale_{};
  WalkDivisors divisors_;
  const bool given_, adds_;
  WalkStates states_{}, grads_{};  ///< of stretches, and their gradients
  int trees_ = 0;                  ///< that have states to pass on
  float *of_queries_ = nullptr, *of_keys_ = nullptr, *across_ = nullptr, *kept_vectors_ = nullptr;
  uint4* kept_ = nullptr;
  TensorView parts_{};  ///< of a gradient of q or k, a head each
};

}  // namespace flashmask::cuda::sm80
