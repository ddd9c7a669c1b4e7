// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "cpu/launch.h"
#include "cpu/sinks.h"

namespace flashmask::cpu {
namespace {

class Forward final : public ForwardKernel {
 public:
  Forward(KernelInfo info, const InstructionSet& set, const KernelCode& code)
      : ForwardKernel(std::move(info)), set_(set), code_(code.forward), tangents_(code.tangents) {}

  std::string refusal() const override { return refusal_of(set_); }
  std::string reservation() const override { return reservation_of(set_); }
  double measure_peak() const override { return set_.dot_rate(); }

  std::size_t workspace_bytes(const Problem& problem, int workers) const override {
    const std::int64_t tasks = problem.batch * problem.query_heads * tiles_of(problem.query_length, kForwardRows);
    return static_cast<std::size_t>(std::min<std::int64_t>(workers, tasks)) * scratch_bytes(problem);
  }

  bool has_tangents() const override { return true; }
  std::size_t tangents_workspace_bytes(const Problem& problem, int workers) const override {
    return cpu::tangents_workspace_bytes(tangents_, problem, workers);
  }
  void run_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution) const override {
    cpu::run_tangents(tangents_, set_.predicates.of(info().predicate).column_words, plan, tensors, execution);
  }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const std::int64_t row_tiles = plan.schedule(Direction::forward).row_tiles();
    const std::size_t scratch = scratch_bytes(problem);
    const TaskOrder order(plan.schedule(Direction::forward), tensors.q, problem.query_heads, row_tiles);
    // The last row tiles of a causal mask are the heaviest: they go first, so that threads end together.
    const auto tile_of = [&](std::int64_t task) {
      const HeadTile ascending = order[task];
      return HeadTile{ascending.batch, ascending.head, row_tiles - 1 - ascending.tile};
    };
    // Column tiles to prefetch: if the next row tile is of the same head, all of its column tiles but the first have
    // just been read.
    const std::int64_t most = order.tile_by_tile() ? 3 : 1;
    for_each_task(execution.executor, execution.workers, order.tasks(), [&](std::int64_t task, int worker) {
      const std::int64_t next = task + execution.workers;
      run_row_tile(plan, tensors, tile_of(task),
                   next < order.tasks() ? first_read(plan, tensors, tile_of(next), most) : FirstRead{}, execution,
                   execution.workspace + static_cast<std::size_t>(worker) * scratch);
    });
  }

 private:
  std::size_t scratch_bytes(const Problem& problem) const {
    return round_up_line(code_.scratch_bytes(static_cast<int>(problem.head_dim), static_cast<int>(problem.value_dim),
                                             has_bias_tensor(problem)));
  }

  static FirstRead first_read(const Plan& plan, const ForwardTensors& tensors, const HeadTile& at, std::int64_t most) {
    const RunList runs = HeadMask(plan, Direction::forward, at.batch, at.head).row_runs(at.tile);
    if (runs.count == 0) return {};
    const std::int64_t begin = runs.runs[0].begin, end = runs.runs[runs.count - 1].end;
    const std::int64_t kv_head = at.head / (plan.problem().query_heads / plan.problem().kv_heads);
    const HeadSizes sizes = head_sizes(plan, at.batch);
    return {head_rows<Rows>(tensors.q, at.batch, at.head), head_rows<Rows>(tensors.k, at.batch, kv_head),
            head_rows<Rows>(tensors.v, at.batch, kv_head), sizes.queries.at(at.tile * kForwardRows, kForwardRows),
            sizes.keys.at(begin * kForwardColumns, std::min(end - begin, most) * kForwardColumns)};
  }

  void run_row_tile(const Plan& plan, const ForwardTensors& tensors, const HeadTile& at, const FirstRead& next,
                    const KernelExecution& execution, std::byte* scratch) const {
    const Problem& problem = plan.problem();
    const auto [batch, head, row_tile] = at;
    const std::int64_t kv_head = head / (problem.query_heads / problem.kv_heads);
    const HeadMask mask(plan, Direction::forward, batch, head);
    const HeadSizes sizes = head_sizes(plan, batch);
    const TokenRun rows = sizes.queries.at(row_tile * kForwardRows, kForwardRows);
    if (rows.count == 0) return;
    float sinks[kForwardRows];
    if (tensors.sinks.present()) read_sinks(tensors.sinks, batch, head, rows.first, sinks);
    code_.run({sizes, head_rows<Rows>(tensors.q, batch, head), head_rows<Rows>(tensors.k, batch, kv_head),
               head_rows<Rows>(tensors.v, batch, kv_head),
               written_rows(problem, Direction::forward, tensors.o, batch, head), head_line(tensors.lse, batch, head),
               tensors.max_scores.present() ? head_line(tensors.max_scores, batch, head) : nullptr,
               tensors.sinks.present() ? sinks : nullptr, head_bias(problem, tensors, batch, head), row_tile, next,
               mask.row_runs(row_tile), mask.partial_tiles(), set_.predicates.of(info().predicate).column_words,
               dropout_draw(problem, execution, batch, head), plan.visit() == Visit::active, scratch});
  }

  const InstructionSet& set_;
  const ForwardCode code_;
  const TangentsCode tangents_;
};

}  // namespace

std::unique_ptr<const Kernel> forward_kernel(KernelInfo info, const InstructionSet& set, const KernelCode& code) {
  return std::make_unique<const Forward>(std::move(info), set, code);
}

}  // namespace flashmask::cpu
