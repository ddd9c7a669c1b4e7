// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/launch.h"
#include "cpu/sinks.h"

namespace flashmask::cpu {
namespace {

std::size_t scratch_bytes(const TangentsCode& code, const Problem& problem) {
  return round_up_line(code.scratch_bytes(static_cast<int>(problem.head_dim), static_cast<int>(problem.value_dim),
                                          has_bias_tensor(problem)));
}

/// Returns one head of a tensor that may be absent.
Rows optional_rows(const TensorView& tensor, std::int64_t batch, std::int64_t head) {
  return tensor.present() ? head_rows<Rows>(tensor, batch, head) : Rows{};
}

}  // namespace

std::size_t tangents_workspace_bytes(const TangentsCode& code, const Problem& problem, int workers) {
  const std::int64_t tasks = problem.batch * problem.query_heads * tiles_of(problem.query_length, kForwardRows);
  return static_cast<std::size_t>(std::min<std::int64_t>(workers, tasks)) * scratch_bytes(code, problem);
}

void run_tangents(const TangentsCode& code, ReadWords column_words, const Plan& plan, const TangentTensors& tensors,
                  const KernelExecution& execution) {
  const Problem& problem = plan.problem();
  const TileSchedule& schedule = plan.schedule(Direction::forward);
  const std::size_t scratch = scratch_bytes(code, problem);
  const TaskOrder order(schedule, tensors.q, problem.query_heads, schedule.row_tiles());
  for_each_task(execution.executor, execution.workers, order.tasks(), [&](std::int64_t task, int worker) {
    const auto [batch, head, ascending] = order[task];
    const std::int64_t row_tile = schedule.row_tiles() - 1 - ascending;  // the heaviest first, as in the forward
    const std::int64_t kv_head = head / (problem.query_heads / problem.kv_heads);
    const HeadMask mask(plan, Direction::forward, batch, head);
    const HeadSizes sizes = head_sizes(plan, batch);
    const TokenRun rows = sizes.queries.at(row_tile * kForwardRows, kForwardRows);
    if (rows.count == 0) return;
    float sinks[kForwardRows];
    if (tensors.sinks.present()) read_sinks(tensors.sinks, batch, head, rows.first, sinks);
    code.run({sizes,
              head_rows<Rows>(tensors.q, batch, head),
              head_rows<Rows>(tensors.k, batch, kv_head),
              head_rows<Rows>(tensors.v, batch, kv_head),
              head_rows<Rows>(tensors.o, batch, head),
              head_line(tensors.lse, batch, head),
              optional_rows(tensors.tangent_q, batch, head),
              optional_rows(tensors.tangent_k, batch, kv_head),
              optional_rows(tensors.tangent_v, batch, kv_head),
              written_rows(problem, Direction::forward, tensors.tangent_o, batch, head),
              head_line(tensors.tangent_lse, batch, head),
              tensors.sinks.present() ? sinks : nullptr,
              head_bias(problem, tensors, batch, head),
              row_tile,
              mask.row_runs(row_tile),
              mask.partial_tiles(),
              column_words,
              dropout_draw(problem, execution, batch, head),
              plan.visit() == Visit::active,
              execution.workspace + static_cast<std::size_t>(worker) * scratch});
  });
}

}  // namespace flashmask::cpu
