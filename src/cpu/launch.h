// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bodies.h"
#include "cpu/instruction_set.h"
#include "cpu/kernel_tasks.h"
#include "flashmask/block_map.h"
#include "mask/to_bits.h"
#include "plan/dropout.h"
#include "plan/gather.h"
#include "plan/kernel.h"
#include "plan/plan_choice.h"
#include "schedule/places.h"

namespace flashmask::cpu {

std::unique_ptr<const Kernel> forward_kernel(KernelInfo info, const InstructionSet& set, const KernelCode& code);
std::unique_ptr<const Kernel> backward_kernel(KernelInfo info, const InstructionSet& set, const BackwardCode& code);
std::unique_ptr<const TableEntry> linear_kernel(const InstructionSet& set, const KernelCode& code);

/// The second half of a forward kernel: the tangents of its results.
std::size_t tangents_workspace_bytes(const TangentsCode& code, const Problem& problem, int workers);
void run_tangents(const TangentsCode& code, ReadWords column_words, const Plan& plan, const TangentTensors& tensors,
                  const KernelExecution& execution);

constexpr std::size_t round_up_line(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr std::int64_t tiles_of(std::int64_t tokens, int tile) { return (tokens + tile - 1) / tile; }

/// Calls body(task, worker) for every task in [0, tasks), handed out in ascending order.
template <class Body>
void for_each_task(Executor& executor, int workers, std::int64_t tasks, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const int used = static_cast<int>(tasks < workers ? tasks : workers);
  run_bodies(executor, used, [&](int worker) {
    for (std::int64_t task = next++; task < tasks; task = next++) body(task, worker);
  });
}

/// One tile of one head.
struct HeadTile {
  std::int64_t batch, head, tile;
};

/// The order in which a call computes the tiles of all its heads. Usually head after head, so that a head's keys and
/// values stay in the caches for its next tile. Where rows are short, and the heads of a token lie side by side in
/// memory, tile after tile: such a call waits for memory, which is faster in long pieces. Short means that all heads
/// together read few keys per row tile, and visit no more tiles than one head has.
class TaskOrder {
 public:
  /// Orders `tiles` tiles of each of `heads` heads, which lie in memory as the heads of `tensor` do.
  TaskOrder(const TileSchedule& schedule, const TensorView& tensor, std::int64_t heads, std::int64_t tiles)
      : heads_(heads), tiles_(tiles), tasks_(tensor.shape[0] * heads * tiles) {
    constexpr std::int64_t kLittle = 8192;  ///< keys, measured
    const TileCounts counts = schedule.counts();
    const std::int64_t of_all_heads = counts.active() * heads, all = counts.active() + counts.skip;
    const MaskShape& mask = schedule.mask_shape();
    const std::int64_t row_tiles = mask.batch * mask.heads * schedule.row_tiles();
    tile_by_tile_ = tensor.strides[2] < tensor.strides[1] && of_all_heads <= all &&
                    of_all_heads * schedule.tile().columns <= kLittle * row_tiles;
  }

  std::int64_t tasks() const { return tasks_; }
  bool tile_by_tile() const { return tile_by_tile_; }

  HeadTile operator[](std::int64_t task) const {
    const std::int64_t batch = task / (heads_ * tiles_), rest = task % (heads_ * tiles_);
    if (tile_by_tile_) return {batch, rest % heads_, rest / heads_};
    return {batch, rest / tiles_, rest % tiles_};
  }

 private:
  std::int64_t heads_, tiles_, tasks_;
  bool tile_by_tile_;
};

/// Returns one head of a (batch, sequence, heads, dim) tensor; head_line() returns one of a (batch, heads, sequence)
/// tensor.
template <class RowsType>
RowsType head_rows(const TensorView& tensor, std::int64_t batch, std::int64_t head) {
  const auto element = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  const std::int64_t offset = batch * tensor.strides[0] + head * tensor.strides[2];
  return {static_cast<std::byte*>(tensor.data) + offset * element, tensor.strides[1]};
}
/// Returns rows that a call writes, which bypass the caches where the call's tensors are larger than these: a line that
/// is written into a cache is read from memory first, and evicts what is still to be read.
inline MutableRows written_rows(const Problem& problem, Direction direction, const TensorView& tensor,
                                std::int64_t batch, std::int64_t head) {
  constexpr std::size_t kCache = std::size_t{32} << 20;
  auto rows = head_rows<MutableRows>(tensor, batch, head);
  rows.past_caches = gathered_bytes(problem, direction) > kCache;
  return rows;
}
inline float* head_line(const TensorView& tensor, std::int64_t batch, std::int64_t head) {
  return static_cast<float*>(tensor.data) + batch * tensor.strides[0] + head * tensor.strides[1];
}

inline FunctionNodes function_nodes(const ScoreFunction* function) {
  if (function == nullptr) return {};
  return {function->nodes().data(), static_cast<int>(function->nodes().size()),
          function->value(),        function->slope(),
          function->bias_slope(),   function->sides(false),
          function->sides(true)};
}

inline HeadSizes head_sizes(const Plan& plan, std::int64_t batch) {
  const Problem& problem = plan.problem();
  const Places* places = PlanAccess::places(plan);
  return {places == nullptr ? PlacedTokens{.tokens = problem.query_length} : places->rows.of(batch),
          places == nullptr ? PlacedTokens{.tokens = problem.key_length} : places->columns.of(batch),
          problem.dtype,
          static_cast<int>(problem.head_dim),
          static_cast<int>(problem.value_dim),
          static_cast<float>(problem.softmax_scale()),
          static_cast<float>(problem.softmax_scale() * problem.change.later_factors()),
          static_cast<float>(problem.change.bias_factors()),
          problem.change.steps().data(),
          static_cast<int>(problem.change.steps().size()),
          has_bias_tensor(problem),
          function_nodes(problem.change.function())};
}

/// Returns one head of a (1 or batch, 1 or query heads, …) tensor.
inline void* head_of(const TensorView& tensor, std::int64_t batch, std::int64_t query_head) {
  const std::int64_t offset = (tensor.shape[0] == 1 ? 0 : batch * tensor.strides[0]) +
                              (tensor.shape[1] == 1 ? 0 : query_head * tensor.strides[1]);
  return static_cast<std::byte*>(tensor.data) + offset * static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
}

inline HeadValues head_values(const Problem& problem, const BiasTensor& bias, std::int64_t batch,
                              std::int64_t query_head) {
  const TensorView& values = bias.values;
  const std::int64_t row_stride = values.shape[2] == 1 ? 0 : values.strides[2];
  const bool by_distance = problem.change.bias() == ScoreBias::distances;
  return {head_of(values, batch, query_head), values.dtype, row_stride, by_distance ? values.shape[3] : 0,
          problem.key_length - problem.query_length + bias.origin};
}

template <class Tensors>
HeadBias head_bias(const Problem& problem, const Tensors& tensors, std::int64_t batch, std::int64_t query_head) {
  const AlibiTensors& alibi = tensors.alibi;
  HeadBias made{};
  made.operands = {tensors.operands.data(), batch, query_head};
  if (has_bias_tensor(problem)) made.values = head_values(problem, tensors.bias, batch, query_head);
  if (problem.change.bias() != ScoreBias::alibi) return made;
  // An array for all batch entries has one entry, or one dimension less.
  const auto of_entry = [&](const TensorView& tensor, bool shared) {
    return static_cast<const float*>(tensor.data) + (shared ? 0 : batch * tensor.strides[0]);
  };
  const auto positions = [&](const TensorView& tensor) {
    return tensor.present() ? of_entry(tensor, tensor.shape[0] == 1) : nullptr;
  };
  return {true,
          of_entry(alibi.slopes, alibi.slopes.rank == 1)[query_head],
          positions(alibi.query_positions),
          positions(alibi.key_positions),
          problem.key_length - problem.query_length,
          {}};
}

inline DropoutDraw dropout_draw(const Problem& problem, const KernelExecution& execution, std::int64_t batch,
                                std::int64_t query_head) {
  const DropoutState& state = execution.dropout;
  const DropoutTables& place = execution.dropout_place;
  return {static_cast<std::uint32_t>(state.seed),
          static_cast<std::uint32_t>(state.seed >> 32),
          place.head(problem, batch, query_head),
          static_cast<std::uint32_t>(state.offset),
          place.row_eights,
          place.column_eights,
          dropout_threshold(problem.dropout),
          static_cast<float>(dropout_scale(problem.dropout))};
}

/// The mask and schedule that one query head reads.
class HeadMask {
 public:
  HeadMask(const Plan& plan, Direction direction, std::int64_t batch, std::int64_t query_head)
      : schedule_(plan.schedule(direction)), mask_(plan.mask()) {
    const MaskShape& shape = mask_.shape();
    batch_ = shape.batch == 1 ? 0 : batch;
    head_ = query_head / (plan.problem().query_heads / shape.heads);
  }

  RunList row_runs(std::int64_t row_tile) const { return as_list(schedule_.row_runs(batch_, head_, row_tile)); }
  RunList column_runs(std::int64_t column_tile) const {
    return as_list(schedule_.column_runs(batch_, head_, column_tile));
  }
  PartialTiles partial_tiles() const {
    if (mask_.form() == MaskForm::bits) return {{}, {}, cells(mask_.bits())};
    return {interval_columns(mask_.intervals(), batch_, head_), head_blocks(mask_.blocks()), {}};
  }

 private:
  static RunList as_list(std::span<const Run> runs) { return {runs.data(), std::ssize(runs)}; }

  HeadBlocks head_blocks(const BlockMap* map) const {
    if (map == nullptr) return {};
    return {map->row(batch_, head_, 0), map->block_columns(), map->block()};
  }
  HeadCells cells(const BitMask& bits) const {
    return {bits.cells().offsets.data() + bits.list(batch_, head_, 0), bits.cells().runs.data(), bits.first_cells(),
            bits.words()};
  }

  const TileSchedule& schedule_;
  const LoweredMask& mask_;
  std::int64_t batch_ = 0;
  std::int64_t head_ = 0;
};

}  // namespace flashmask::cpu
