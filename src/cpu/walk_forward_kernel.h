// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <cstdint>

#include "cpu/walk_step.h"

namespace flashmask::cpu {

/// Linear attention of one tree of one head. Steps of a node pass their state on, [key_dim][value_dim] with a
/// normaliser; a child begins with what its parent, whose level keeps it, ended with.
template <class Isa, class In>
class WalkForward {
 public:
  static std::size_t scratch_bytes(const LinearSizes& sizes, const TreeExtent& largest) {
    return WalkForward(sizes, largest.levels, nullptr).used_;
  }

  static void run(const LinearForwardTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    std::int64_t levels = 0;
    for (std::int64_t i = 0; i < task.tree.count; ++i)
      levels = task.tree.levels[i] >= levels ? task.tree.levels[i] + 1 : levels;
    WalkForward kernel(task.sizes, levels, task.scratch);
    for (std::int64_t node = 0; node < task.tree.count; ++node) kernel.walk(task, node);
  }

 private:
  using Vec = typename Isa::Vec;

  /// A matrix and a vector that were multiplied by 2^−scale.
  struct State {
    float *matrix, *normalizer;
  };

  WalkForward(const LinearSizes& sizes, std::int64_t levels, std::byte* memory)
      : sizes_(sizes),
        shape_(sizes.key_dim, sizes.value_dim),
        key_stride_(local_stride<Isa>(sizes.key_dim)),
        value_stride_(local_stride<Isa>(sizes.value_dim)) {
    Scratch scratch(memory);
    queries_ = scratch.take<float>(key_stride_ * kLines);
    keys_ = scratch.take<float>(key_stride_ * kLines);
    weighted_ = scratch.take<float>(key_stride_ * kLines);
    values_ = scratch.take<float>(value_stride_ * kLines);
    lanes_ = scratch.take<float>(round_up_lanes<Isa>(sizes.key_dim) * kStepTokens);
    scores_ = scratch.take<float>(kScoreStride * (kLines + 1));
    divisor_ = scratch.take<float>(kLines + Isa::lanes);
    scales_ = scratch.take<double>(levels);
    states_ = scratch.take<float>((shape_.size() + key_stride_) * levels);
    used_ = scratch.used();
  }

  FLASHMASK_INLINE State state_of(std::int64_t level) const {
    float* const begin = states_ + (shape_.size() + key_stride_) * level;
    return {begin, begin + shape_.size()};
  }

  void walk(const LinearForwardTask& task, std::int64_t node) {
    const Tree& tree = task.tree;
    const std::int64_t level = tree.levels[node], begin = tree.begin(node), end = tree.end(node);
    const State own = state_of(level);
    State from = own;
    if (level > 0) {
      from = state_of(level - 1);
      scales_[level] = scales_[level - 1];
    } else if (task.initial.state != nullptr) {
      load_initial(task, own);
    } else {
      from = {nullptr, nullptr};
      scales_[level] = 0;
    }
    const bool passes_on = tree.has_children(node) || task.final.state != nullptr;
    for (std::int64_t token = begin; token < end; token += kStepTokens) {
      const int tokens = static_cast<int>(end - token < kStepTokens ? end - token : kStepTokens);
      gates_.set(task.log_forget, task.log_input, token, tokens, scales_[level]);
      step(task, token, tokens, from);
      if (token + tokens == end && !passes_on) return;
      update(task, token, tokens, own, from);
      scales_[level] = gates_.scale_behind();
      from = own;
    }
    if (task.final.state != nullptr) store_final(task, tree.first_node + node, own, scales_[level]);
  }

  /// Writes o of a step behind the state `from`, whose matrix is null if it is zero.
  void step(const LinearForwardTask& task, std::int64_t token, int tokens, const State& from) {
    load_scaled<Isa, In>(queries_, key_stride_, task.q, token, tokens, sizes_.key_dim,
                         [&](int) FLASHMASK_INLINE_LAMBDA { return sizes_.scale; });
    load_scaled<Isa, In>(keys_, key_stride_, task.k, token, tokens, sizes_.key_dim,
                         [&](int) FLASHMASK_INLINE_LAMBDA { return 1.0f; });
    load_scaled<Isa, In>(values_, value_stride_, task.v, token, tokens, sizes_.value_dim,
                         [&](int) FLASHMASK_INLINE_LAMBDA { return 1.0f; });
    transpose_to_panels<Isa>(queries_, key_stride_, lanes_, static_cast<int>(round_up_panels<Isa>(tokens)),
                             sizes_.key_dim);
    multiply_scores<Isa>(keys_, key_stride_, lanes_, sizes_.key_dim, tokens, scores_);
    for_each_score(tokens, Isa::row_block, Isa::lanes,
                   [&](int key, int lane, std::uint64_t seen) FLASHMASK_INLINE_LAMBDA {
                     float* const p = scores_ + key * kScoreStride + lane;
                     const Vec x = Isa::mul(gates_.weights(key, lane), Isa::load(p));
                     Isa::store(p, Isa::select(seen, x, Isa::broadcast(0.0f)));
                   });
    divide(tokens, from);
    for_each_output_block<Isa>(
        {queries_, key_stride_, from.matrix, shape_.stride, sizes_.key_dim, gates_.from_state()}, tokens,
        shape_.columns,
        [&](int row)
            FLASHMASK_INLINE_LAMBDA { return sum_over_keys<Isa>(scores_, values_, value_stride_, row, tokens); },
        [](int, std::int64_t, const float*) FLASHMASK_INLINE_LAMBDA {},
        [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
          for_each_vector<Isa>(block, row, column, tokens, sizes_.value_dim,
                               [&](int r, int c, const Vec& x, int count) FLASHMASK_INLINE_LAMBDA {
                                 store_vector<Isa>(row_of<In>(task.o, token + r) + c,
                                                   Isa::mul(x, Isa::broadcast(divisor_[r])), count);
                               });
        });
  }

  /// Finds what the sums of each row are to be multiplied by: 1 over the normaliser, or 2^m.
  void divide(int tokens, const State& from) {
    if (!sizes_.normalize) {
      for (int t = 0; t < tokens; ++t) divisor_[t] = exp2f(gates_.row_scale(t));
      return;
    }
    for (int t = 0; t < tokens; t += Isa::lanes)
      Isa::store(divisor_ + t,
                 sum_of_weights<Isa>(scores_, lanes_, from.normalizer, sizes_.key_dim, gates_.from_state(), t, tokens));
    for (int t = 0; t < tokens; ++t) divisor_[t] = 1 / larger(fabsf(divisor_[t]), exp2f(-gates_.row_scale(t)));
  }

  void update(const LinearForwardTask& task, std::int64_t token, int tokens, const State& own, const State& from) {
    const float* const weights = gates_.into_state();
    load_scaled<Isa, In>(weighted_, key_stride_, task.k, token, tokens, sizes_.key_dim,
                         [&](int t) FLASHMASK_INLINE_LAMBDA { return weights[t]; });
    update_state(shape_, own.matrix, from.matrix, gates_.gain(), weighted_, key_stride_, values_, value_stride_,
                 tokens);
    if (!sizes_.normalize) return;
    for (std::int64_t d = 0; d < sizes_.key_dim; d += Isa::lanes) {
      Vec sum = from.matrix == nullptr ? Isa::broadcast(0.0f)
                                       : Isa::mul(Isa::broadcast(gates_.gain()), Isa::load(from.normalizer + d));
      for (int t = 0; t < tokens; ++t) sum = Isa::add(sum, Isa::load(weighted_ + t * key_stride_ + d));
      Isa::store(own.normalizer + d, sum);
    }
  }

  void load_initial(const LinearForwardTask& task, const State& to) {
    const HeadStates& given = task.initial;
    const std::int64_t root = task.tree.root;
    const Rows rows{given.state + root * given.stride, given.row_stride};
    load_scaled<Isa, float>(to.matrix, shape_.stride, rows, 0, sizes_.key_dim, sizes_.value_dim,
                            [&](int) FLASHMASK_INLINE_LAMBDA { return 1.0f; });
    if (sizes_.normalize)
      load_scaled<Isa, float>(to.normalizer, key_stride_, {given.normalizer + root * given.normalizer_stride, 0}, 0, 1,
                              sizes_.key_dim, [&](int) FLASHMASK_INLINE_LAMBDA { return 1.0f; });
    scales_[0] = scale_of(given, root);
  }

  void store_final(const LinearForwardTask& task, std::int64_t node, const State& from, double scale) {
    const HeadStates& to = task.final;
    const auto store_line = [&](float* line, const float* values, int width) FLASHMASK_INLINE_LAMBDA {
      for (int c = 0; c < width; c += Isa::lanes)
        store_vector<Isa>(line + c, Isa::load(values + c), width - c < Isa::lanes ? width - c : Isa::lanes);
    };
    for (int d = 0; d < sizes_.key_dim; ++d)
      store_line(to.state + node * to.stride + d * to.row_stride, from.matrix + d * shape_.stride, sizes_.value_dim);
    if (sizes_.normalize) store_line(to.normalizer + node * to.normalizer_stride, from.normalizer, sizes_.key_dim);
    to.log_scale[node * to.log_scale_stride] = static_cast<float>(scale * kLn2);
  }

  static constexpr int kLines = kStepLines<Isa>;

  const LinearSizes sizes_;
  const StateShape<Isa> shape_;
  const std::int64_t key_stride_, value_stride_;
  std::size_t used_;
  float *queries_, *keys_, *weighted_, *values_, *lanes_, *scores_, *divisor_, *states_;
  double* scales_;
  StepGates<Isa> gates_;
};

}  // namespace flashmask::cpu
