// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "cpu/bias_gradient.h"
#include "cpu/grad_query_turns.h"
#include "cpu/launch.h"
#include "cpu/sinks.h"
#include "plan/plan_choice.h"

namespace flashmask::cpu {
namespace {

/// Where everything lies in the workspace. Rows are padded to whole tiles. There are no more workers than tasks, but
/// one where there are no keys: it clears the gradient of a table of distances.
struct Layout {
  Layout(const Problem& problem, const BackwardCode& code, int workers)
      : row_tiles(tiles_of(problem.query_length, kBackwardRows)),
        padded_rows(row_tiles * kBackwardRows),
        sum_floats(padded_rows * code.padded_head_dim(static_cast<int>(problem.head_dim))),
        group(problem.query_heads / problem.kv_heads),
        scratch_bytes(round_up_line(code.scratch_bytes(
            static_cast<int>(problem.head_dim), static_cast<int>(problem.value_dim), has_bias_tensor(problem)))) {
    const auto heads = static_cast<std::size_t>(problem.batch * problem.query_heads);
    const std::int64_t tasks = problem.batch * problem.kv_heads * tiles_of(problem.key_length, kBackwardColumns);
    busy = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
    const auto used = static_cast<std::size_t>(busy);
    const auto group_size = static_cast<std::size_t>(group);
    const auto rows = static_cast<std::size_t>(padded_rows);
    lse2 = take(heads * rows * sizeof(float));
    delta = take(heads * rows * sizeof(float));
    sums = take(heads * static_cast<std::size_t>(sum_floats) * sizeof(float));
    added = take(heads * static_cast<std::size_t>(row_tiles) * sizeof(std::atomic<std::int32_t>));
    sink_sums = take(heads * sizeof(double));
    turns = take(used * group_size * sizeof(GradQueryTurns));
    heads_of_workers = take(used * group_size * sizeof(BackwardHead));
    scratch = take(used * scratch_bytes);
    bias_sums = take(bias_gradient_floats(problem, busy) * sizeof(float));
  }

  std::int64_t row_tiles, padded_rows, sum_floats, group;
  std::size_t scratch_bytes;
  int busy = 0;  ///< workers that have memory
  std::size_t lse2, delta, sums, added, sink_sums, turns, heads_of_workers, scratch, bias_sums;
  std::size_t total = 0;

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = total;
    total += round_up_line(bytes);
    return offset;
  }
};

/// One call of backward().
class BackwardCall {
 public:
  BackwardCall(const BackwardCode& code, ReadWords row_words, const Plan& plan, const BackwardTensors& tensors,
               const KernelExecution& execution)
      : code_(code),
        row_words_(row_words),
        plan_(plan),
        problem_(plan.problem()),
        tensors_(tensors),
        execution_(execution),
        layout_(PlanAccess::problem_in_places(plan), code, execution.workers) {}

  void run() const {
    const TileSchedule& schedule = plan_.schedule(Direction::backward);
    const TaskOrder rows(schedule, tensors_.q, problem_.query_heads, layout_.row_tiles);
    for_each_task(execution_.executor, execution_.workers, rows.tasks(),
                  [&](std::int64_t task, int) { prepare(rows[task]); });
    if (tensors_.grad_sinks.present())
      differentiate_sinks(tensors_.sinks, tensors_.grad_sinks, {problem_, statistics(0), layout_.padded_rows},
                          workspace<double>(layout_.sink_sums), execution_);
    if (tensors_.grad_bias.present()) differentiate_bias();
    const TaskOrder columns(schedule, tensors_.k, problem_.kv_heads, schedule.column_tiles());
    for_each_task(execution_.executor, execution_.workers, columns.tasks(), [&](std::int64_t task, int worker) {
      const std::int64_t next = std::min(task + execution_.workers, columns.tasks() - 1);
      run_column_tile(columns[task], columns[next], worker);
    });
  }

 private:
  template <class T>
  T* workspace(std::size_t offset) const {
    return reinterpret_cast<T*>(execution_.workspace + offset);
  }
  std::atomic<std::int32_t>* added(std::int64_t head_index) const {
    return workspace<std::atomic<std::int32_t>>(layout_.added) + head_index * layout_.row_tiles;
  }
  LseAndDelta statistics(std::int64_t head_index) const {
    return {workspace<float>(layout_.lse2) + head_index * layout_.padded_rows,
            workspace<float>(layout_.delta) + head_index * layout_.padded_rows};
  }

  float* query_sums(std::int64_t head_index) const {
    if (!PlanAccess::wants_query_gradient(plan_)) return nullptr;
    return workspace<float>(layout_.sums) + head_index * layout_.sum_floats;
  }

  void prepare(const HeadTile& at) const {
    const auto [batch, head, row_tile] = at;
    const std::int64_t head_index = batch * problem_.query_heads + head;
    new (added(head_index) + row_tile) std::atomic<std::int32_t>(0);
    const HeadMask mask(plan_, Direction::backward, batch, head);
    code_.prepare({head_sizes(plan_, batch), head_rows<Rows>(tensors_.o, batch, head),
                   head_rows<Rows>(tensors_.grad_o, batch, head), head_line(tensors_.lse, batch, head),
                   tensors_.grad_lse.present() ? head_line(tensors_.grad_lse, batch, head) : nullptr,
                   statistics(head_index), written(tensors_.grad_q, batch, head), mask.row_runs(row_tile).count != 0,
                   row_tile});
  }

  void run_column_tile(const HeadTile& at, const HeadTile& next, int worker) const {
    const auto [batch, kv_head, column_tile] = at;
    const std::int64_t first = static_cast<std::int64_t>(worker) * layout_.group;
    BackwardHead* heads = workspace<BackwardHead>(layout_.heads_of_workers) + first;
    GradQueryTurns* turns = workspace<GradQueryTurns>(layout_.turns) + first;
    for (std::int64_t g = 0; g < layout_.group; ++g) {
      const std::int64_t head = kv_head * layout_.group + g;
      const std::int64_t head_index = batch * problem_.query_heads + head;
      const HeadMask mask(plan_, Direction::backward, batch, head);
      new (turns + g) GradQueryTurns{added(head_index), mask};
      new (heads + g) BackwardHead(backward_head({batch, head, column_tile}, mask));
      heads[g].grad_q_sum = query_sums(head_index);
      heads[g].turns = turns + g;
      heads[g].grad_bias = head_value_gradients(batch, head);
      if (heads[g].grad_bias.data != nullptr)
        clear_unvisited(tensors_.grad_bias, {batch, head, column_tile}, heads[g].runs);
    }
    code_.run(backward_task(at, next, heads, static_cast<int>(layout_.group), worker));
  }

  /// What one query head brings to a column tile. Nothing is added to its gradient of q.
  BackwardHead backward_head(const HeadTile& at, const HeadMask& mask) const {
    const auto [batch, head, column_tile] = at;
    return {head_rows<Rows>(tensors_.q, batch, head),
            head_rows<Rows>(tensors_.grad_o, batch, head),
            statistics(batch * problem_.query_heads + head),
            written(tensors_.grad_q, batch, head),
            nullptr,
            nullptr,
            mask.column_runs(column_tile),
            mask.partial_tiles(),
            dropout_draw(problem_, execution_, batch, head),
            head_bias(problem_, tensors_, batch, head),
            {}};
  }

  /// `at` and `next` are of key heads.
  BackwardTask backward_task(const HeadTile& at, const HeadTile& next, const BackwardHead* heads, int head_count,
                             int worker) const {
    const auto [batch, kv_head, column_tile] = at;
    return {head_sizes(plan_, batch),
            head_rows<Rows>(tensors_.k, batch, kv_head),
            head_rows<Rows>(tensors_.v, batch, kv_head),
            written(tensors_.grad_k, batch, kv_head),
            written(tensors_.grad_v, batch, kv_head),
            PlanAccess::wants_key_gradients(plan_),
            tensors_.grad_k.dtype == DType::f32,
            column_tile,
            head_rows<Rows>(tensors_.k, next.batch, next.head),
            head_rows<Rows>(tensors_.v, next.batch, next.head),
            next.tile,
            heads,
            head_count,
            row_words_,
            static_cast<float>(dropout_scale(problem_.dropout)),
            plan_.visit() == Visit::active,
            workspace<std::byte>(layout_.scratch) + static_cast<std::size_t>(worker) * layout_.scratch_bytes};
  }

  bool has_own_values() const { return cpu::has_own_values(problem_, tensors_.bias.values); }

  HeadValueGradients head_value_gradients(std::int64_t batch, std::int64_t head) const {
    const TensorView& gradient = tensors_.grad_bias;
    if (!gradient.present() || !has_own_values()) return {};
    return {head_of(gradient, batch, head), gradient.dtype, gradient.strides[2]};
  }

  void differentiate_bias() const {
    if (has_own_values()) return;
    sum_bias_gradient(plan_, tensors_, workspace<float>(layout_.bias_sums), execution_.executor, layout_.busy,
                      [&](const HeadTile& columns, RunList rows, int worker, float* sum) {
                        const HeadMask mask(plan_, Direction::backward, columns.batch, columns.head);
                        BackwardHead head = backward_head(columns, mask);
                        head.runs = rows;
                        const HeadTile of_keys{columns.batch, columns.head / layout_.group, columns.tile};
                        BackwardTask task = backward_task(of_keys, of_keys, &head, 1, worker);
                        task.key_gradients = false;
                        task.bias_sum = sum;
                        code_.run(task);
                      });
  }

  MutableRows written(const TensorView& tensor, std::int64_t batch, std::int64_t head) const {
    return written_rows(problem_, Direction::backward, tensor, batch, head);
  }

  const BackwardCode& code_;
  const ReadWords row_words_;
  const Plan& plan_;
  const Problem& problem_;
  const BackwardTensors& tensors_;
  const KernelExecution& execution_;
  const Layout layout_;
};

class Backward final : public BackwardKernel {
 public:
  Backward(KernelInfo info, const InstructionSet& set, const BackwardCode& code)
      : BackwardKernel(std::move(info)), set_(set), code_(code) {}

  std::string refusal() const override { return refusal_of(set_); }
  std::string reservation() const override { return reservation_of(set_); }
  double measure_peak() const override { return set_.dot_rate(); }

  std::size_t workspace_bytes(const Problem& problem, int workers) const override {
    return Layout(problem, code_, workers).total;
  }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    BackwardCall(code_, set_.predicates.of(info().predicate).row_words, plan, tensors, execution).run();
  }

 private:
  const InstructionSet& set_;
  const BackwardCode code_;
};

}  // namespace

std::unique_ptr<const Kernel> backward_kernel(KernelInfo info, const InstructionSet& set, const BackwardCode& code) {
  return std::make_unique<const Backward>(std::move(info), set, code);
}

}  // namespace flashmask::cpu
