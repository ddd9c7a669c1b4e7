// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernel_tasks.h"

/// The arguments of the CPU kernels of linear attention: plain pointers and sizes, as in kernel_tasks.h.
namespace flashmask::cpu {

/// Tokens of a step: a step is part of one node, and its mask is a triangle.
inline constexpr int kStepTokens = kWordBits;

/// Tokens of a stretch: whole steps of one node. The backward keeps one state per stretch, and within a stretch one per
/// step, so that its memory grows by a state per 1,024 tokens.
inline constexpr int kStretchSteps = 16;
inline constexpr int kStretchTokens = kStretchSteps * kStepTokens;

struct LinearSizes {
  int key_dim;
  int value_dim;
  float scale;  ///< of q
  bool normalize;
};

/// One root and all nodes below it, in ascending order of tokens: a node's children follow it at once, each with all of
/// its own descendants. Tokens are those of the batch entry.
struct Tree {
  const std::int64_t* begins;
  const std::int64_t* ends;
  const std::int64_t* parents;  ///< numbered as `first_node` counts; −1: a root
  const std::int64_t* levels;
  std::int64_t count;
  std::int64_t token_offset;  ///< of the batch entry, which `begins` and `ends` include
  std::int64_t first_node;    ///< the root's number among the nodes of the batch
  std::int64_t root;          ///< its number among the roots of the batch

  [[gnu::always_inline]] std::int64_t begin(std::int64_t node) const { return begins[node] - token_offset; }
  [[gnu::always_inline]] std::int64_t end(std::int64_t node) const { return ends[node] - token_offset; }
  [[gnu::always_inline]] bool has_children(std::int64_t node) const {
    return node + 1 < count && levels[node + 1] > levels[node];
  }
};

/// The gates of one head, one per token, or their gradients; data is null where there are none.
struct GateLine {
  float* data;
  std::int64_t stride;
};

/// The states of one head, one per node or root, or their gradients; `state` is null where there are none.
struct HeadStates {
  float* state;  ///< [key_dim][value_dim] of each
  std::int64_t stride, row_stride;
  float* normalizer;  ///< [key_dim] of each; null: none
  std::int64_t normalizer_stride;
  float* log_scale;  ///< null: none
  std::int64_t log_scale_stride;
};

/// One tree of one head.
struct LinearForwardTask {
  LinearSizes sizes;
  Tree tree;
  Rows q, k, v;
  GateLine log_forget, log_input;
  HeadStates initial, final;
  MutableRows o;
  std::byte* scratch;
};

/// One head of a group that shares a key head.
struct LinearHead {
  Rows v, o, grad_o;
  GateLine log_forget, log_input;
  HeadStates initial, grad_final;
  MutableRows grad_v;
  GateLine grad_log_forget, grad_log_input;
  HeadStates grad_initial;
};

/// One tree of one key head.
struct LinearBackwardTask {
  LinearSizes sizes;
  Tree tree;
  Rows q, k;
  MutableRows grad_q, grad_k;
  const LinearHead* heads;
  int head_count;
  std::byte* scratch;
};

/// What the scratch memory of a task depends on beside its sizes; a task needs no more than one with larger numbers.
struct TreeExtent {
  std::int64_t levels = 0;       ///< of the deepest node, and one more
  std::int64_t checkpoints = 0;  ///< nodes with children, and stretches that no node begins with
  std::int64_t nodes = 0;
  std::int64_t tokens = 0;
};

/// The code for one dtype and instruction set. `group` is the number of heads that share a key head.
struct LinearCode {
  std::size_t (*forward_scratch)(const LinearSizes& sizes, const TreeExtent& largest);
  void (*forward)(const LinearForwardTask& task);
  std::size_t (*backward_scratch)(const LinearSizes& sizes, const TreeExtent& largest, int group);
  void (*backward)(const LinearBackwardTask& task);
};

}  // namespace flashmask::cpu
