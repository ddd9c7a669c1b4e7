// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/walk/link_arguments.cuh"
#include "cuda/sm80/walk/stretch_gates.cuh"

/// The small kernels around the walks: sums of gates, and how states pass from stretch to stretch.
namespace flashmask::cuda::sm80 {

/// Sums up the gates of a stretch of a head per block, and those of a step per warp, two tokens per lane.
class GateBlock {
 public:
  __device__ __forceinline__ GateBlock(GateMemory& shared, const GateArguments& arguments)
      : shared_(shared),
        arguments_(arguments),
        number_(static_cast<int>(blockIdx.x) / arguments.plan.heads),
        head_(static_cast<int>(blockIdx.x) % arguments.plan.heads) {}

  __device__ __forceinline__ void run() {
    const WalkStretch& own = arguments_.plan.stretches[number_];
    for (int step = static_cast<int>(thread_index()) / 32; step < own.steps(); step += kWalkThreads / 32)
      add(own, step);
    __syncthreads();
    if (thread_index() != 0) return;
    double decay = 0, scale = 0;
    for (int step = 0; step < own.steps(); ++step) {
      decay += shared_.totals[step];
      scale = at_least_zero(shared_.totals[step] + larger(scale, shared_.tops[step]));
    }
    const std::int64_t at = static_cast<std::int64_t>(number_) * arguments_.plan.heads + head_;
    arguments_.links.decay[at] = decay;
    arguments_.links.own_scale[at] = scale;
  }

 private:
  __device__ __forceinline__ void add(const WalkStretch& own, int step) {
    const int lane = lane_index(), first = step * kWalkTokens + 2 * lane;
    double forget[2] = {}, input[2] = {};
    for (int i = 0; i < 2; ++i)
      if (first + i < own.tokens) {
        forget[i] = gate_powers(arguments_.log_forget.of(own.batch, own.row + first + i, head_));
        input[i] = gate_powers(arguments_.log_input.of(own.batch, own.row + first + i, head_));
      }
    double sum = forget[0] + forget[1];
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0U, sum, distance);
      if (lane >= distance) sum += before;
    }
    const double sums[2] = {sum - forget[1], sum};
    const double columns[2] = {sums[0] - input[0], sums[1] - input[1]};
    const double start = first < own.tokens ? -columns[0] : -INFINITY;
    double top = first + 1 < own.tokens ? larger(start, -columns[1]) : start;
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0U, top, distance);
      if (lane >= distance) top = larger(top, before);
    }
    const double before = __shfl_up_sync(~0U, top, 1);
    const double tops[2] = {lane == 0 ? start : larger(before, start), top};
    double* const to = arguments_.gates.of(head_, arguments_.plan.steps, own.first_step + step) + 2 * lane;
    for (int i = 0; i < 2; ++i) {
      to[i] = sums[i];
      to[kWalkTokens + i] = columns[i];
      to[2 * kWalkTokens + i] = tops[i];
    }
    if (lane != 31) return;
    shared_.totals[step] = sum;
    shared_.tops[step] = top;
  }

  GateMemory& shared_;
  const GateArguments& arguments_;
  const int number_, head_;
};

/// A block of kWalkThreads threads per stretch and head.
__global__ void __launch_bounds__(kWalkThreads) walk_gates_kernel(const __grid_constant__ GateArguments arguments) {
  GateBlock(shared_memory<GateMemory>(), arguments).run();
}

/// Finds the scales of states behind stretches, a thread per tree and head.
__global__ void walk_links_kernel(const __grid_constant__ LinkArguments arguments) {
  const int heads = arguments.plan.heads;
  const auto number = static_cast<std::int64_t>(blockIdx.x) * kWalkThreads + thread_index();
  if (number >= static_cast<std::int64_t>(arguments.trees) * heads) return;
  const WalkTree tree = arguments.plan.trees[number / heads];
  const int head = static_cast<int>(number % heads);
  const WalkLinks& links = arguments.links;
  for (int s = tree.begin; s < tree.end; ++s) {
    const WalkStretch& own = arguments.plan.stretches[s];
    const std::int64_t at = static_cast<std::int64_t>(s) * heads + head;
    const double before = links.decay[at] + scale_before(own, head, heads, links.scale_behind, arguments.initial_scale);
    const double behind = larger(links.own_scale[at], before);
    links.scale_behind[at] = behind;
    links.gain[at] = power(before - behind);
    links.own_gain[at] = power(links.own_scale[at] - behind);
    const WalkScales& to = arguments.final_scale;
    if (to.data != nullptr && own.node >= 0)
      to.data[own.node * to.item + head * to.head] = static_cast<float>(behind * kLn2);
  }
}

/// Where one number of a state is, in a tree and head.
class CarriedNumber {
 public:
  __device__ __forceinline__ CarriedNumber(const CarryArguments& arguments)
      : chunks_((arguments.numbers() + kCarryThreads - 1) / kCarryThreads) {
    const std::int64_t block = blockIdx.x;
    number_ = static_cast<int>(block % chunks_) * kCarryThreads + static_cast<int>(thread_index());
    exists_ = number_ < arguments.numbers();
    head_ = static_cast<int>(block / chunks_ % arguments.plan.heads);
    tree_ = arguments.plan.trees[block / chunks_ / arguments.plan.heads];
    in_matrix_ = number_ < arguments.key_dim * arguments.value_dim;
    key_ = in_matrix_ ? number_ / arguments.value_dim : number_ - arguments.key_dim * arguments.value_dim;
    value_ = in_matrix_ ? number_ % arguments.value_dim : 0;
  }

  __device__ __forceinline__ bool exists() const { return exists_; }
  __device__ __forceinline__ int head() const { return head_; }
  __device__ __forceinline__ const WalkTree& tree() const { return tree_; }
  __device__ __forceinline__ float& in(const WalkStates& states, std::int64_t item) const {
    return in_matrix_
               ? states.state[item * states.item + head_ * states.head + key_ * states.key + value_ * states.value]
               : states.vector[item * states.vector_item + head_ * states.vector_head + key_];
  }

 private:
  int chunks_, number_, head_, key_, value_;
  bool exists_, in_matrix_;
  WalkTree tree_;
};

/// Stretches whose sums a thread reads at once, since a state waits for the one before it.
inline constexpr int kCarriedAtOnce = 8;

/// Turns what stretches add into the states behind them, a thread per number of a state, tree and head.
__global__ void __launch_bounds__(kCarryThreads) walk_carry_kernel(const __grid_constant__ CarryArguments arguments) {
  const CarriedNumber number(arguments);
  if (!number.exists()) return;
  const WalkPlanView& plan = arguments.plan;
  const WalkTree tree = number.tree();
  const auto exists = [&](int s) { return s < tree.end && (plan.every_state || plan.stretches[s].has_successor); };
  float behind = 0;  // the state behind the last stretch
  for (int first = tree.begin; first < tree.end; first += kCarriedAtOnce) {
    float sums[kCarriedAtOnce];
#pragma unroll
    for (int i = 0; i < kCarriedAtOnce; ++i)
      sums[i] = exists(first + i) ? number.in(arguments.sums, plan.slot(first + i)) : 0;
#pragma unroll
    for (int i = 0; i < kCarriedAtOnce; ++i) {
      const int s = first + i;
      if (!exists(s)) continue;
      const WalkStretch& own = plan.stretches[s];
      const std::int64_t at = static_cast<std::int64_t>(s) * plan.heads + number.head();
      float state = arguments.links.own_gain[at] * sums[i];
      if (own.parent >= 0)
        state += arguments.links.gain[at] *
                 (own.parent == s - 1 ? behind : number.in(arguments.sums, plan.slot(own.parent)));
      else if (arguments.begin.state != nullptr)
        state += arguments.links.gain[at] * number.in(arguments.begin, own.root);
      number.in(arguments.sums, plan.slot(s)) = behind = state;
      if (arguments.end.state != nullptr && own.node >= 0) number.in(arguments.end, own.node) = state;
    }
  }
}

/// Turns what stretches add to gradients into the gradients of the states behind them, from the last to the first.
__global__ void __launch_bounds__(kCarryThreads)
    walk_carry_back_kernel(const __grid_constant__ CarryArguments arguments) {
  const CarriedNumber number(arguments);
  if (!number.exists()) return;
  const WalkPlanView& plan = arguments.plan;
  const WalkTree tree = number.tree();
  const auto passes_on = [&](int s) {
    return s >= tree.begin && (plan.stretches[s].parent >= 0 || arguments.begin.state != nullptr);
  };
  float given = 0;  // what the stretches behind this one gave its gradient, where the next is among them
  bool next_gave = false;
  for (int last = tree.end - 1; last >= tree.begin; last -= kCarriedAtOnce) {
    float sums[kCarriedAtOnce];
#pragma unroll
    for (int i = 0; i < kCarriedAtOnce; ++i)
      sums[i] = passes_on(last - i) ? number.in(arguments.sums, plan.slot(last - i)) : 0;
#pragma unroll
    for (int i = 0; i < kCarriedAtOnce; ++i) {
      const int s = last - i;
      if (s < tree.begin) break;
      const WalkStretch& own = plan.stretches[s];
      float grad = next_gave ? given : own.has_successor ? number.in(arguments.grads, plan.slot(s)) : 0;
      next_gave = false;
      if (arguments.end.state != nullptr) {
        if (own.node >= 0) grad += number.in(arguments.end, own.node);
        number.in(arguments.grads, plan.slot(s)) = grad;
      }
      if (!passes_on(s)) continue;
      const float before =
          sums[i] + arguments.links.gain[static_cast<std::int64_t>(s) * plan.heads + number.head()] * grad;
      if (own.parent < 0) {
        number.in(arguments.begin, own.root) = before;
        continue;
      }
      float& of_parent = number.in(arguments.grads, plan.slot(own.parent));
      of_parent = given = own.gives_first ? before : of_parent + before;
      next_gave = own.parent == s - 1;
    }
  }
}

}  // namespace flashmask::cuda::sm80
