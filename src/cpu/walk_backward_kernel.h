// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <cstdint>

#include "cpu/walk_step.h"

namespace flashmask::cpu {

/// The gradients of linear attention for one tree of one key head. With g = ∂o / divisor and v extended by a column of
/// 1 where o was divided, ∂q is a walk of (g, v, k) forwards, ∂k and ∂v are walks of (v, g, q) and (k, q, g) backwards;
/// the first has the transposed state of the forward, S [value][key], the others share the gradient of it, Y.
///
/// States are not kept by the forward. One pass over the tree keeps those at the begins of stretches, and those that
/// nodes with children end with; then stretches are visited last to first, each making the states of its own steps.
template <class Isa, class In>
class WalkBackward {
 public:
  static std::size_t scratch_bytes(const LinearSizes& sizes, const TreeExtent& largest, int group) {
    return WalkBackward(sizes, largest, group, nullptr).used_;
  }

  static void run(const LinearBackwardTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    WalkBackward kernel(task.sizes, extent_of(task.tree), task.head_count, task.scratch);
    for (int head = 0; head < task.head_count; ++head) kernel.walk(task, head);
  }

 private:
  using Vec = typename Isa::Vec;
  static constexpr int kLines = kStepLines<Isa>;
  /// Whether the gradients of q and k, which are of the dtype of the call, cannot hold the sums over a group's heads.
  static constexpr bool kNarrow = sizeof(In) != sizeof(float);

  static FLASHMASK_INLINE std::int64_t stretches_of(const Tree& tree, std::int64_t node) {
    return (tree.ends[node] - tree.begins[node] + kStretchTokens - 1) / kStretchTokens;
  }

  static FLASHMASK_INLINE TreeExtent extent_of(const Tree& tree) {
    TreeExtent extent;
    extent.nodes = tree.count;
    extent.tokens = tree.ends[tree.count - 1] - tree.begins[0];
    for (std::int64_t i = 0; i < tree.count; ++i) {
      extent.levels = tree.levels[i] >= extent.levels ? tree.levels[i] + 1 : extent.levels;
      extent.checkpoints += stretches_of(tree, i) - 1 + (tree.has_children(i) ? 1 : 0);
    }
    return extent;
  }

  WalkBackward(const LinearSizes& sizes, const TreeExtent& extent, int group, std::byte* memory)
      : sizes_(sizes),
        value_units_(sizes.value_dim + (sizes.normalize ? 1 : 0)),
        shape_(value_units_, sizes.key_dim),
        transposed_(sizes.key_dim, sizes.value_dim),
        key_stride_(local_stride<Isa>(sizes.key_dim)),
        value_stride_(local_stride<Isa>(value_units_)) {
    Scratch scratch(memory);
    queries_ = scratch.take<float>(key_stride_ * kLines);
    keys_ = scratch.take<float>(key_stride_ * kLines);
    values_ = scratch.take<float>(value_stride_ * kLines);
    grads_ = scratch.take<float>(value_stride_ * kLines);
    weighted_ = scratch.take<float>(value_stride_ * kLines);
    query_lanes_ = scratch.take<float>(round_up_lanes<Isa>(sizes.key_dim) * kStepTokens);
    grad_lanes_ = scratch.take<float>(round_up_lanes<Isa>(value_units_) * kStepTokens);
    scores_ = scratch.take<float>(kScoreStride * (kLines + 1));
    grad_scores_ = scratch.take<float>(kScoreStride * (kLines + 1));
    pairs_ = weights_ = scratch.take<float>(kScoreStride * (kLines + 1));
    grad_transposed_ = scratch.take<float>(transposed_.size());
    step_scales_ = scratch.take<double>(kStretchSteps);
    step_states_ = scratch.take<float>(shape_.size() * (kStretchSteps - 1));
    first_checkpoints_ = scratch.take<std::int64_t>(extent.nodes);
    scales_ = scratch.take<double>(extent.checkpoints + 1);
    checkpoints_ = scratch.take<float>(shape_.size() * (extent.checkpoints + 1));
    grad_states_ = scratch.take<float>(shape_.size() * extent.levels);
    has_grad_ = scratch.take<bool>(extent.levels);
    const bool sums = group > 1 && kNarrow;
    grad_query_sum_ = sums ? scratch.take<float>(extent.tokens * sizes.key_dim) : nullptr;
    grad_key_sum_ = sums ? scratch.take<float>(extent.tokens * sizes.key_dim) : nullptr;
    used_ = scratch.used();
  }

  /// A matrix that was multiplied by 2^−scale; null: zero.
  struct State {
    const float* matrix;
    double scale;
  };

  void walk(const LinearBackwardTask& task, int head) {
    const LinearHead& own = task.heads[head];
    const Tree& tree = task.tree;
    head_ = head;
    keep_checkpoints(task, own);
    for (std::int64_t level = 0, i = 0; i < tree.count; ++i)
      if (tree.levels[i] >= level) has_grad_[level++] = false;
    for (std::int64_t node = tree.count - 1; node >= 0; --node) walk_back(task, own, node);
  }

  /// Checkpoint 0 is the root's initial state; a node's own follow those of the nodes before it.
  FLASHMASK_INLINE float* checkpoint(std::int64_t i) const { return checkpoints_ + shape_.size() * i; }

  void keep_checkpoints(const LinearBackwardTask& task, const LinearHead& head) {
    const Tree& tree = task.tree;
    if (head.initial.state != nullptr) load_initial(head, tree.root);
    std::int64_t next = 1;
    for (std::int64_t node = 0; node < tree.count; ++node) {
      first_checkpoints_[node] = next;
      State state = before_node(tree, head, node);
      const std::int64_t kept = stretches_of(tree, node) - (tree.has_children(node) ? 0 : 1);
      for (std::int64_t i = 0; i < kept; ++i, ++next) {
        const std::int64_t begin = tree.begin(node) + i * kStretchTokens;
        const std::int64_t left = tree.end(node) - begin, end = begin + (left < kStretchTokens ? left : kStretchTokens);
        for (std::int64_t token = begin; token < end; token += kStepTokens)
          state = advance(task, head, token, end, state, checkpoint(next));
        scales_[next] = state.scale;
      }
    }
  }

  /// The state that a node begins with.
  State before_node(const Tree& tree, const LinearHead& head, std::int64_t node) const {
    if (tree.levels[node] == 0) return head.initial.state == nullptr ? State{nullptr, 0} : kept(0);
    const std::int64_t parent = tree.parents[node] - tree.first_node;
    return kept(first_checkpoints_[parent] + stretches_of(tree, parent) - 1);
  }
  FLASHMASK_INLINE State kept(std::int64_t i) const { return {checkpoint(i), scales_[i]}; }

  /// Writes the state behind the step that begins at `token` to `to`.
  State advance(const LinearBackwardTask& task, const LinearHead& head, std::int64_t token, std::int64_t end,
                const State& from, float* to) {
    const int tokens = static_cast<int>(end - token < kStepTokens ? end - token : kStepTokens);
    gates_.set(head.log_forget, head.log_input, token, tokens, from.scale);
    load_plain(keys_, key_stride_, task.k, token, tokens, sizes_.key_dim);
    const float* const weights = gates_.into_state();
    load_scaled<Isa, In>(weighted_, value_stride_, head.v, token, tokens, sizes_.value_dim,
                         [&](int t) FLASHMASK_INLINE_LAMBDA { return weights[t]; });
    if (sizes_.normalize)
      for (int t = 0; t < tokens; ++t) weighted_[t * value_stride_ + sizes_.value_dim] = weights[t];
    update_state(shape_, to, from.matrix, gates_.gain(), weighted_, value_stride_, keys_, key_stride_, tokens);
    return {to, gates_.scale_behind()};
  }

  void walk_back(const LinearBackwardTask& task, const LinearHead& head, std::int64_t node) {
    const Tree& tree = task.tree;
    const std::int64_t level = tree.levels[node], begin = tree.begin(node);
    float* const grad = grad_states_ + shape_.size() * level;
    if (head.grad_final.state != nullptr) add_grad_final(head.grad_final, tree.first_node + node, grad, level);
    for (std::int64_t i = stretches_of(tree, node) - 1; i >= 0; --i) {
      const std::int64_t first = begin + i * kStretchTokens, left = tree.end(node) - first;
      const State before = i == 0 ? before_node(tree, head, node) : kept(first_checkpoints_[node] + i - 1);
      walk_stretch_back(task, head, first, left < kStretchTokens ? left : kStretchTokens, before, grad, level,
                        level > 0 || i > 0 || head.grad_initial.state != nullptr);
    }
    if (level > 0)
      add_to_parent(grad, level);
    else if (head.grad_initial.state != nullptr)
      store_grad_initial(head.grad_initial, tree.root, has_grad_[0] ? grad : nullptr);
    has_grad_[level] = false;
  }

  /// `passes_on`: whether the gradient of the state before the stretch is read.
  void walk_stretch_back(const LinearBackwardTask& task, const LinearHead& head, std::int64_t begin,
                         std::int64_t tokens, const State& before, float* grad, std::int64_t level, bool passes_on) {
    const std::int64_t end = begin + tokens, steps = (tokens + kStepTokens - 1) / kStepTokens;
    step_scales_[0] = before.scale;
    State state = before;
    for (std::int64_t s = 1; s < steps; ++s) {
      state = advance(task, head, begin + (s - 1) * kStepTokens, end, state, step_states_ + (s - 1) * shape_.size());
      step_scales_[s] = state.scale;
    }
    for (std::int64_t s = steps - 1; s >= 0; --s) {
      const std::int64_t token = begin + s * kStepTokens;
      const float* const matrix = s == 0 ? before.matrix : step_states_ + (s - 1) * shape_.size();
      step_back(task, head, token, static_cast<int>(end - token < kStepTokens ? end - token : kStepTokens),
                {matrix, step_scales_[s]}, has_grad_[level] ? grad : nullptr);
      if (s == 0 && !passes_on) return;
      update_state(shape_, grad, has_grad_[level] ? grad : nullptr, gates_.gain(), grads_, value_stride_, queries_,
                   key_stride_, static_cast<int>(end - token < kStepTokens ? end - token : kStepTokens));
      has_grad_[level] = true;
    }
  }

  /// Writes the gradients of one step behind the state `from`; `grad` is the gradient of the state behind the step,
  /// null: zero. Leaves what the gradient of `from` needs: gates_, queries_, and grads_ times their weights.
  void step_back(const LinearBackwardTask& task, const LinearHead& head, std::int64_t token, int tokens,
                 const State& from, const float* grad) {
    gates_.set(head.log_forget, head.log_input, token, tokens, from.scale);
    load_scaled<Isa, In>(queries_, key_stride_, task.q, token, tokens, sizes_.key_dim,
                         [&](int) FLASHMASK_INLINE_LAMBDA { return sizes_.scale; });
    load_plain(keys_, key_stride_, task.k, token, tokens, sizes_.key_dim);
    load_plain(values_, value_stride_, head.v, token, tokens, sizes_.value_dim);
    if (sizes_.normalize)
      for (int t = 0; t < tokens; ++t) values_[t * value_stride_ + sizes_.value_dim] = 1;
    score(tokens);
    load_grads(head, token, tokens, from.matrix);
    differentiate_scores(tokens);
    for (int t = 0; t < kLines; ++t) into_query_[t] = into_key_[t] = of_key_[t] = 0;
    write_grad_q(task, token, tokens, from.matrix);
    write_grad_k(task, token, tokens, grad);
    write_grad_v(head, token, tokens, grad);
    if (head.grad_log_input.data != nullptr)
      for (int t = 0; t < tokens; ++t) head.grad_log_input.data[(token + t) * head.grad_log_input.stride] = of_key_[t];
    if (head.grad_log_forget.data != nullptr) write_grad_log_forget(head.grad_log_forget, token, tokens, from, grad);
    const float* const weights = gates_.from_state();
    for (int t = 0; t < tokens; ++t)
      for (std::int64_t c = 0; c < value_units_; c += Isa::lanes) {
        float* const p = grads_ + t * value_stride_ + c;
        Isa::store(p, Isa::mul(Isa::broadcast(weights[t]), Isa::load(p)));
      }
  }

  void load_plain(float* dst, std::int64_t stride, const Rows& src, std::int64_t token, int tokens, int width) {
    load_scaled<Isa, In>(dst, stride, src, token, tokens, width, [](int) FLASHMASK_INLINE_LAMBDA { return 1.0f; });
  }

  /// Computes the weights, and the weighted scores.
  void score(int tokens) {
    transpose_to_panels<Isa>(queries_, key_stride_, query_lanes_, static_cast<int>(round_up_panels<Isa>(tokens)),
                             sizes_.key_dim);
    multiply_scores<Isa>(keys_, key_stride_, query_lanes_, sizes_.key_dim, tokens, scores_);
    for_each_score(tokens, Isa::row_block, Isa::lanes,
                   [&](int key, int lane, std::uint64_t seen) FLASHMASK_INLINE_LAMBDA {
                     const std::int64_t at = key * kScoreStride + lane;
                     const Vec zero = Isa::broadcast(0.0f), weight = gates_.weights(key, lane);
                     Isa::store(weights_ + at, Isa::select(seen, weight, zero));
                     Isa::store(scores_ + at, Isa::select(seen, Isa::mul(weight, Isa::load(scores_ + at)), zero));
                   });
  }

  /// Loads ∂o over the divisor of each row, and beside it the gradient of the sum of weights where that divides.
  void load_grads(const LinearHead& head, std::int64_t token, int tokens, const float* matrix) {
    if (!sizes_.normalize) {
      load_scaled<Isa, In>(grads_, value_stride_, head.grad_o, token, tokens, sizes_.value_dim,
                           [&](int t) FLASHMASK_INLINE_LAMBDA { return exp2f(gates_.row_scale(t)); });
    } else {
      const float* const normalizer = matrix == nullptr ? nullptr : matrix + sizes_.value_dim * shape_.stride;
      float sums[kStepTokens + Isa::lanes];
      for (int t = 0; t < tokens; t += Isa::lanes)
        Isa::store(sums + t, sum_of_weights<Isa>(scores_, query_lanes_, normalizer, sizes_.key_dim, gates_.from_state(),
                                                 t, tokens));
      const auto bound = [&](int t) FLASHMASK_INLINE_LAMBDA { return exp2f(-gates_.row_scale(t)); };
      load_scaled<Isa, In>(grads_, value_stride_, head.grad_o, token, tokens, sizes_.value_dim,
                           [&](int t) FLASHMASK_INLINE_LAMBDA { return 1 / larger(fabsf(sums[t]), bound(t)); });
      for (int t = 0; t < tokens; ++t) {
        float* const row = grads_ + t * value_stride_;
        const float sign = fabsf(sums[t]) < bound(t) ? 0.0f : sums[t] < 0 ? -1.0f : 1.0f;
        row[sizes_.value_dim] = sign == 0 ? 0 : -sign * product(row, row_of<In>(head.o, token + t));
      }
    }
    transpose_to_panels<Isa>(grads_, value_stride_, grad_lanes_, static_cast<int>(round_up_panels<Isa>(tokens)),
                             value_units_);
  }

  /// Returns the product of a row of g and one of o.
  float product(const float* g, const In* o) const {
    Vec sum = Isa::broadcast(0.0f);
    int c = 0;
    for (; c + Isa::lanes <= sizes_.value_dim; c += Isa::lanes)
      sum = Isa::fma(Isa::load(g + c), Isa::widen(o + c), sum);
    if (c < sizes_.value_dim) {
      const int rest = sizes_.value_dim - c;
      const Vec last = Isa::select((1ULL << rest) - 1, Isa::load(g + c), Isa::broadcast(0.0f));
      sum = Isa::fma(last, Isa::widen_tail(o + c, rest), sum);
    }
    return Isa::sum(sum);
  }

  /// Computes the gradients of the scores, and turns the weights into what each pair adds to the gradients of the gates
  /// between its tokens.
  void differentiate_scores(int tokens) {
    multiply_scores<Isa>(values_, value_stride_, grad_lanes_, value_units_, tokens, grad_scores_);
    for_each_score(tokens, Isa::row_block, Isa::lanes,
                   [&](int key, int lane, std::uint64_t seen) FLASHMASK_INLINE_LAMBDA {
                     const std::int64_t at = key * kScoreStride + lane;
                     const Vec x = Isa::select(seen, Isa::load(grad_scores_ + at), Isa::broadcast(0.0f));
                     Isa::store(grad_scores_ + at, Isa::mul(Isa::load(weights_ + at), x));
                     Isa::store(pairs_ + at, Isa::mul(Isa::load(scores_ + at), x));
                   });
  }

  void write_grad_q(const LinearBackwardTask& task, std::int64_t token, int tokens, const float* matrix) {
    const auto note = [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
      add_row_products<Isa>(into_query_, block, queries_, key_stride_, row, column);
    };
    const auto within = [&](int row) FLASHMASK_INLINE_LAMBDA {
      return sum_over_keys<Isa>(grad_scores_, keys_, key_stride_, row, tokens);
    };
    const Vec scale = Isa::broadcast(sizes_.scale);
    for_each_output_block<Isa>(
        {grads_, value_stride_, matrix, shape_.stride, value_units_, gates_.from_state()}, tokens, shape_.columns,
        within, note, [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
          for_each_vector<Isa>(block, row, column, tokens, sizes_.key_dim,
                               [&](int r, int c, const Vec& x, int count) FLASHMASK_INLINE_LAMBDA {
                                 store_key_gradient(task, task.grad_q, grad_query_sum_, token + r, c,
                                                    Isa::mul(scale, x), count);
                               });
        });
  }

  void write_grad_k(const LinearBackwardTask& task, std::int64_t token, int tokens, const float* grad) {
    const auto note = [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
      add_row_products<Isa>(into_key_, block, keys_, key_stride_, row, column);
    };
    const auto within = [&](int key) FLASHMASK_INLINE_LAMBDA {
      return sum_over_rows(grad_scores_, queries_, key_stride_, key, tokens);
    };
    for_each_output_block<Isa>(
        {values_, value_stride_, grad, shape_.stride, value_units_, gates_.into_state()}, tokens, shape_.columns,
        within, note, [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
          add_row_products<Isa>(of_key_, block, keys_, key_stride_, row, column);
          for_each_vector<Isa>(block, row, column, tokens, sizes_.key_dim,
                               [&](int r, int c, const Vec& x, int count) FLASHMASK_INLINE_LAMBDA {
                                 store_key_gradient(task, task.grad_k, grad_key_sum_, token + r, c, x, count);
                               });
        });
  }

  void write_grad_v(const LinearHead& head, std::int64_t token, int tokens, const float* grad) {
    if (grad != nullptr)
      for (std::int64_t c = 0; c < sizes_.value_dim; c += Isa::lanes)
        for (std::int64_t d = 0; d < sizes_.key_dim; d += Isa::lanes)
          Isa::transpose(grad + c * shape_.stride + d, shape_.stride, grad_transposed_ + d * transposed_.stride + c,
                         transposed_.stride);
    const auto within = [&](int key) FLASHMASK_INLINE_LAMBDA {
      return sum_over_rows(scores_, grads_, value_stride_, key, tokens);
    };
    for_each_output_block<Isa>(
        {keys_, key_stride_, grad == nullptr ? nullptr : grad_transposed_, transposed_.stride, sizes_.key_dim,
         gates_.into_state()},
        tokens, transposed_.columns, within, [](int, std::int64_t, const float*) FLASHMASK_INLINE_LAMBDA {},
        [&](int row, std::int64_t column, const float* block) FLASHMASK_INLINE_LAMBDA {
          for_each_vector<Isa>(block, row, column, tokens, sizes_.value_dim,
                               [&](int r, int c, const Vec& x, int count) FLASHMASK_INLINE_LAMBDA {
                                 store_vector<Isa>(row_of<In>(head.grad_v, token + r) + c, x, count);
                               });
        });
  }

  /// Stores a vector of the gradient of q or k, which the heads of a group add up in float32.
  FLASHMASK_INLINE void store_key_gradient(const LinearBackwardTask& task, const MutableRows& rows, float* sums,
                                           std::int64_t token, int c, Vec x, int count) const {
    In* const out = row_of<In>(rows, token) + c;
    const bool is_last = head_ + 1 == task.head_count;
    if (task.head_count > 1) {
      float* sum = nullptr;
      if constexpr (kNarrow) {
        sum = sums + (token - task.tree.begin(0)) * sizes_.key_dim + c;
      } else {
        sum = out;
      }
      if (head_ > 0) x = Isa::add(x, count == Isa::lanes ? Isa::load(sum) : Isa::widen_tail(sum, count));
      if (!is_last) {
        store_vector<Isa>(sum, x, count);
        return;
      }
    }
    store_vector<Isa>(out, x, count);
  }

  /// The gradient of a token's log_forget: a sum over pairs with key < token ≤ row, whether both lie in the step, one
  /// or none. Nothing is subtracted, so that small gradients keep their digits beside large terms (docs/linear.md).
  void write_grad_log_forget(const GateLine& to, std::int64_t token, int tokens, const State& from, const float* grad) {
    float sums[kStepTokens + Isa::lanes];
    float across = grad == nullptr || from.matrix == nullptr ? 0.0f : gates_.gain() * state_product(from.matrix, grad);
    float later = 0;
    for (int t = tokens - 1; t >= 0; --t) sums[t] = later += into_query_[t];
    for (int t = 0; t < tokens; ++t) {
      sums[t] += across;
      across += into_key_[t];
    }
    for (int lane = 0; lane < tokens; lane += Isa::lanes) {
      Vec before = Isa::broadcast(0.0f);  // what the keys before t add, for each row
      const int end = lane + Isa::lanes < tokens ? lane + Isa::lanes : tokens;
      const std::uint64_t rows = tokens - lane < Isa::lanes ? (1ULL << (tokens - lane)) - 1 : ~0ULL;
      for (int t = 0; t < end; ++t) {
        sums[t] += Isa::sum(Isa::select(rows & rows_behind(t, lane), before, Isa::broadcast(0.0f)));
        before = Isa::add(before, Isa::load(pairs_ + t * kScoreStride + lane));
      }
    }
    for (int t = 0; t < tokens; ++t) to.data[(token + t) * to.stride] = sums[t];
  }

  float state_product(const float* x, const float* y) const {
    Vec sum = Isa::broadcast(0.0f);
    for (std::int64_t row = 0; row < value_units_; ++row)
      for (std::int64_t c = 0; c < shape_.columns; c += Isa::lanes)
        sum = Isa::fma(Isa::load(x + row * shape_.stride + c), Isa::load(y + row * shape_.stride + c), sum);
    return Isa::sum(sum);
  }

  void load_initial(const LinearHead& head, std::int64_t root) {
    const HeadStates& given = head.initial;
    fill_zero<Isa>(checkpoint(0), shape_.size());
    add_given(given, root, checkpoint(0));
    scales_[0] = scale_of(given, root);
  }

  void add_grad_final(const HeadStates& given, std::int64_t node, float* grad, std::int64_t level) {
    if (!has_grad_[level]) fill_zero<Isa>(grad, shape_.size());
    has_grad_[level] = true;
    add_given(given, node, grad);
  }

  /// Adds a state of the caller, [key][value] and a normaliser, to one of [value][key].
  void add_given(const HeadStates& given, std::int64_t place, float* to) const {
    for (int d = 0; d < sizes_.key_dim; ++d)
      for (int c = 0; c < sizes_.value_dim; ++c)
        to[c * shape_.stride + d] += given.state[place * given.stride + d * given.row_stride + c];
    if (given.normalizer != nullptr)
      for (int d = 0; d < sizes_.key_dim; ++d)
        to[sizes_.value_dim * shape_.stride + d] += given.normalizer[place * given.normalizer_stride + d];
  }

  void add_to_parent(const float* grad, std::int64_t level) {
    if (!has_grad_[level]) return;
    float* const parent = grad_states_ + shape_.size() * (level - 1);
    for (std::int64_t i = 0; i < shape_.size(); i += Isa::lanes)
      Isa::store(parent + i,
                 has_grad_[level - 1] ? Isa::add(Isa::load(parent + i), Isa::load(grad + i)) : Isa::load(grad + i));
    has_grad_[level - 1] = true;
  }

  void store_grad_initial(const HeadStates& to, std::int64_t root, const float* grad) const {
    for (int d = 0; d < sizes_.key_dim; ++d)
      for (int c = 0; c < sizes_.value_dim; ++c)
        to.state[root * to.stride + d * to.row_stride + c] = grad == nullptr ? 0 : grad[c * shape_.stride + d];
    if (to.normalizer != nullptr)
      for (int d = 0; d < sizes_.key_dim; ++d)
        to.normalizer[root * to.normalizer_stride + d] =
            grad == nullptr ? 0 : grad[sizes_.value_dim * shape_.stride + d];
  }

  const LinearSizes sizes_;
  const int value_units_;
  const StateShape<Isa> shape_, transposed_;
  const std::int64_t key_stride_, value_stride_;
  std::size_t used_;
  int head_ = 0;
  float *queries_, *keys_, *values_, *grads_, *weighted_, *query_lanes_, *grad_lanes_, *scores_, *grad_scores_;
  float *weights_, *pairs_;  // one after the other, in the same memory

  float *grad_transposed_, *step_states_, *checkpoints_, *grad_states_, *grad_query_sum_, *grad_key_sum_;
  double *step_scales_, *scales_;
  std::int64_t* first_checkpoints_;
  bool* has_grad_;
  float into_query_[kLines], into_key_[kLines], of_key_[kLines];
  StepGates<Isa> gates_;
};

}  // namespace flashmask::cpu
