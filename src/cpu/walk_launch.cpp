// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bodies.h"
#include "cpu/instruction_set.h"
#include "cpu/launch.h"
#include "cpu/linear_tasks.h"
#include "plan/executor_of.h"
#include "plan/linear.h"
#include "plan/workspace.h"

namespace flashmask::cpu {
namespace {

Tree task_tree(const LinearPlanContent& plan, const LinearTree& tree) {
  const Nodes& nodes = plan.nodes;
  const std::int64_t first = tree.first_node, begin = nodes.begins[static_cast<std::size_t>(first)];
  return {nodes.begins.data() + first,
          nodes.ends.data() + first,
          nodes.parents.data() + first,
          nodes.levels.data() + first,
          tree.nodes,
          begin / plan.problem.length * plan.problem.length,
          first,
          tree.root};
}

std::int64_t batch_of(const LinearPlanContent& plan, const LinearTree& tree) {
  return plan.nodes.begins[static_cast<std::size_t>(tree.first_node)] / plan.problem.length;
}

/// Returns the largest of each number over the trees of a plan.
TreeExtent largest_extent(const LinearPlanContent& plan) {
  TreeExtent largest;
  for (const LinearTree& each : plan.trees) {
    const Tree tree = task_tree(plan, each);
    std::int64_t checkpoints = 0;
    for (std::int64_t i = 0; i < tree.count; ++i) {
      largest.levels = std::max(largest.levels, tree.levels[i] + 1);
      checkpoints += tiles_of(tree.ends[i] - tree.begins[i], kStretchTokens) - 1 + (tree.has_children(i) ? 1 : 0);
    }
    largest.checkpoints = std::max(largest.checkpoints, checkpoints);
    largest.nodes = std::max(largest.nodes, each.nodes);
    largest.tokens = std::max(largest.tokens, each.tokens);
  }
  return largest;
}

LinearSizes sizes_of(const LinearProblem& p) {
  return {static_cast<int>(p.key_dim), static_cast<int>(p.value_dim), p.query_scale(), p.normalize};
}

GateLine gate_line(const TensorView& gates, std::int64_t batch, std::int64_t head) {
  if (!gates.present()) return {};
  return {static_cast<float*>(gates.data) + batch * gates.strides[0] + head * gates.strides[2], gates.strides[1]};
}

HeadStates head_states(const LinearStates& states, std::int64_t head) {
  HeadStates of_head{};
  if (states.state.present()) {
    const auto& strides = states.state.strides;
    of_head.state = static_cast<float*>(states.state.data) + head * strides[1];
    of_head.stride = strides[0];
    of_head.row_stride = strides[2];
  }
  if (states.normalizer.present()) {
    of_head.normalizer = static_cast<float*>(states.normalizer.data) + head * states.normalizer.strides[1];
    of_head.normalizer_stride = states.normalizer.strides[0];
  }
  if (states.log_scale.present()) {
    of_head.log_scale = static_cast<float*>(states.log_scale.data) + head * states.log_scale.strides[1];
    of_head.log_scale_stride = states.log_scale.strides[0];
  }
  return of_head;
}

/// Calls body(tree, head, scratch) for every tree and head, the longest trees first, with `scratch_bytes` per worker.
template <class Body>
void for_each_tree(const char* call, const LinearPlanContent& plan, std::int64_t heads, std::size_t scratch_bytes,
                   Executor& executor, const Body& body) {
  const std::int64_t tasks = std::ssize(plan.trees) * heads;
  if (tasks == 0) return;
  const int workers = static_cast<int>(std::min<std::int64_t>(worker_count(executor), tasks));
  const std::size_t bytes = round_up_line(scratch_bytes);
  const Workspace workspace = allocate_workspace(call, bytes * static_cast<std::size_t>(workers), workers);
  for_each_task(executor, workers, tasks, [&](std::int64_t task, int worker) {
    body(plan.trees[static_cast<std::size_t>(task / heads)], task % heads,
         workspace.get() + static_cast<std::size_t>(worker) * bytes);
  });
}

/// Writes zeros to the rows of padding of a tensor (batch, length, heads, …).
void clear_padding(const LinearPlanContent& plan, const TensorView& tensor) {
  if (!tensor.present()) return;
  const std::int64_t length = plan.problem.length, width = tensor.rank == 4 ? tensor.shape[3] : 1;
  const std::size_t element = size_in_bytes(tensor.dtype);
  for (const Span& span : plan.padding)
    for (std::int64_t token = span.begin; token < span.end; ++token)
      for (std::int64_t head = 0; head < tensor.shape[2]; ++head) {
        const std::int64_t at =
            token / length * tensor.strides[0] + token % length * tensor.strides[1] + head * tensor.strides[2];
        std::memset(static_cast<std::byte*>(tensor.data) + at * static_cast<std::int64_t>(element), 0,
                    static_cast<std::size_t>(width) * element);
      }
}

class Walk final : public LinearKernel {
 public:
  Walk(const InstructionSet& set, const KernelCode& code)
      : LinearKernel({std::string(set.name) + ".linear." + to_string(code.dtype) + ".s" + std::to_string(kStepTokens),
                      set.name, code.dtype, DeviceType::cpu, kMaxHeadDim, kMaxHeadDim}),
        set_(set),
        code_(code.linear) {}

  std::string refusal() const override { return refusal_of(set_); }
  std::string reservation() const override { return reservation_of(set_); }

  void forward(const LinearPlanContent& plan, const LinearForwardTensors& t,
               const Execution& execution) const override {
    const LinearProblem& p = plan.problem;
    clear_padding(plan, t.o);
    const std::size_t bytes = code_.forward_scratch(sizes_of(p), largest_extent(plan));
    for_each_tree("linear_forward", plan, p.heads, bytes, executor_of(execution),
                  [&](const LinearTree& tree, std::int64_t head, std::byte* scratch) {
                    const std::int64_t batch = batch_of(plan, tree), key_head = head / (p.heads / p.key_heads);
                    code_.forward({sizes_of(p), task_tree(plan, tree), head_rows<Rows>(t.q, batch, key_head),
                                   head_rows<Rows>(t.k, batch, key_head), head_rows<Rows>(t.v, batch, head),
                                   gate_line(t.log_forget, batch, head), gate_line(t.log_input, batch, head),
                                   head_states(t.initial, head), head_states(t.final, head),
                                   head_rows<MutableRows>(t.o, batch, head), scratch});
                  });
  }

  void backward(const LinearPlanContent& plan, const LinearBackwardTensors& t,
                const Execution& execution) const override {
    const LinearProblem& p = plan.problem;
    for (const TensorView* output : {&t.grad_q, &t.grad_k, &t.grad_v, &t.grad_log_forget, &t.grad_log_input})
      clear_padding(plan, *output);
    const auto group = static_cast<int>(p.heads / p.key_heads);
    const std::size_t bytes = code_.backward_scratch(sizes_of(p), largest_extent(plan), group);
    for_each_tree(
        "linear_backward", plan, p.key_heads, bytes, executor_of(execution),
        [&](const LinearTree& tree, std::int64_t key_head, std::byte* scratch) {
          const std::int64_t batch = batch_of(plan, tree);
          std::vector<LinearHead> heads;
          for (std::int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
            heads.push_back(head_of(t, batch, h));
          code_.backward({sizes_of(p), task_tree(plan, tree), head_rows<Rows>(t.q, batch, key_head),
                          head_rows<Rows>(t.k, batch, key_head), head_rows<MutableRows>(t.grad_q, batch, key_head),
                          head_rows<MutableRows>(t.grad_k, batch, key_head), heads.data(), group, scratch});
        });
  }

 private:
  static LinearHead head_of(const LinearBackwardTensors& t, std::int64_t batch, std::int64_t head) {
    return {head_rows<Rows>(t.v, batch, head),         head_rows<Rows>(t.o, batch, head),
            head_rows<Rows>(t.grad_o, batch, head),    gate_line(t.log_forget, batch, head),
            gate_line(t.log_input, batch, head),       head_states(t.initial, head),
            head_states(t.grad_final, head),           head_rows<MutableRows>(t.grad_v, batch, head),
            gate_line(t.grad_log_forget, batch, head), gate_line(t.grad_log_input, batch, head),
            head_states(t.grad_initial, head)};
  }

  const InstructionSet& set_;
  const LinearCode code_;
};

}  // namespace

std::unique_ptr<const TableEntry> linear_kernel(const InstructionSet& set, const KernelCode& code) {
  return std::make_unique<const Walk>(set, code);
}

}  // namespace flashmask::cpu
