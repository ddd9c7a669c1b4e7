// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/backward/column_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that takes key tiles from the counter, copies K and V of each, and keeps the rings of Q and the gradient of
/// O filled: for each query head with the partial row tiles first, then the full ones.
template <class Shape>
class ColumnProducer {
  using List = TileList<false, Shape::kForm>;

  /// With more row tiles than this, their q and gradient of o do not fit in the L2 cache beside the rest.
  static constexpr int kLongTile = 512;

 public:
  __device__ __forceinline__ ColumnProducer(ColumnMemory<Shape>& shared, const ColumnArguments& arguments,
                                            const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v,
                                            const CUtensorMap* grad_o, const BiasMap* bias)
      : shared_(shared), arguments_(arguments), q_(q), k_(k), v_(v), grad_o_(grad_o), bias_(bias) {}

  __device__ __forceinline__ void run() {
    const int items = arguments_.columns.all_tiles();
    for (int item = next_item(); item < items; item = next_item()) {
      ColumnWork tile = key_tile(item);
      if (tile.keys.first >= tile.keys.end) continue;  // it holds no keys
      tile.list = list_of(tile, tile.kv_head * arguments_.head_ratio).list;
      tile.steps = count(tile);
      if (tile.steps > kLongTile && tile.steps == arguments_.map.inner_tiles * arguments_.head_ratio) await_wave(item);
      publish(tile);
      if (tile.steps > 0) stream(tile);
    }
    publish({0, 0, 0, 0, 0, -1, {0, 0}});
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }

  /// Takes a key tile only when all copies of the previous one are issued; otherwise a busy block would hold a key tile
  /// that another block could begin. Even the first key tile comes from the counter, not from the block's number:
  /// epilogues of other blocks wait for key tiles, and this block may get to run only after those blocks have ended.
  __device__ __forceinline__ int next_item() {
    int item = 0;
    if (lane() == 0) item = atomicAdd(arguments_.progress.next_column, 1);
    return __shfl_sync(~0U, item, 0);
  }

  /// Waits for the blocks that begin at about the same time. Key tiles that visit every row tile all read the same rows
  /// in the same order; where these do not fit in the L2 cache, blocks that have drifted apart would each read them
  /// from memory. The wait is limited, because some of these blocks may not run before another launch has ended.
  __device__ __forceinline__ void await_wave(int item) const {
    const int blocks = static_cast<int>(gridDim.x),
              end = min((item / blocks + 1) * blocks, arguments_.columns.all_tiles());
    for (int looks = 0; looks < 64 && !has_reached(arguments_.progress.next_column, end); ++looks) __nanosleep(1000);
  }

  /// Returns the key tile that an item stands for: the first keys first, because with causal masks they take longest.
  __device__ __forceinline__ ColumnWork key_tile(int item) const {
    const SectionTile tile = arguments_.columns.tile(item);
    const int batch = tile.head / arguments_.kv_heads;
    return {tile.section,
            batch,
            tile.head % arguments_.kv_heads,
            tile.tile,
            0,
            0,
            tokens_of(arguments_.key_units, batch, tile.tile * Shape::kColumns)};
  }

  __device__ __forceinline__ List list_of(const ColumnWork& tile, int head) const {
    return List(arguments_.map, tile.batch, head, tile.column_tile);
  }

  __device__ __forceinline__ int count(const ColumnWork& tile) const {
    int steps = 0;
    const int first = tile.kv_head * arguments_.head_ratio;
#pragma unroll 1
    for (int head = first; head < first + arguments_.head_ratio; ++head) {
      const VisitedTiles count = list_of(tile, head).count(lane());
      steps += count.masked + count.full;
    }
    return steps;
  }

  __device__ __forceinline__ void publish(const ColumnWork& work) {
    barrier_wait(&shared_.work_empty[work_.slot], work_.phase ^ 1);
    if (lane() == 0) {
      shared_.work[work_.slot] = work;
      barrier_arrive(&shared_.work_full[work_.slot]);
    }
    __syncwarp();
    work_.advance();
  }

  __device__ __forceinline__ void stream(const ColumnWork& tile) {
    bool first_step = true;
    if constexpr (Biases<Shape>) origin_ = key_position(arguments_.alibi, tile.batch, tile.keys.first);
    int stage = 0;
    const bool ragged = (tile.column_tile + 1) * Shape::kColumns > arguments_.key_length;
    const int first = tile.kv_head * arguments_.head_ratio;
    for (int head = first; head < first + arguments_.head_ratio; ++head) {
      const List list = list_of(tile, head);
      if constexpr (Biases<Shape>) slope_ = slope_of(arguments_.alibi, tile.batch, head);
      list.for_each_marked_tile(lane(), [&](int row_tile, bool masked) {
        if constexpr (Shape::kSums) await_ready(tile.section, row_tile);
        copy_queries(stage, tile, head, row_tile, list.list, masked || ragged ? 1 : 0);
        copy_gradients(stage % Shape::kGradientStages, tile.batch, head, row_tile);
        if constexpr (CopiesBias<Shape>) copy_bias(tile, head, row_tile);
        if (first_step) {
          copy_keys(tile);
          if constexpr (Shape::kOfKeys) copy_values(tile);
          first_step = false;
        }
        phases_.flip(stage);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      });
    }
    tile_phase_ ^= 1;
  }

  /// Waits for the prologue of a row tile, whose statistics are copied next and whose sums consumers will add to.
  __device__ __forceinline__ void await_ready(int section, int row_tile) {
    const Sections& rows = arguments_.rows;
    const int bundle = rows.bundle_of(section, row_tile);
    if (bundle == ready_) return;
    while (!has_reached(arguments_.progress.ready + bundle, rows.in_bundle_of(section, row_tile))) __nanosleep(50);
    fence_loads_for_async();
    ready_ = bundle;
  }

  __device__ __forceinline__ void copy_keys(const ColumnWork& tile) {
    barrier_wait(&shared_.k_empty, tile_phase_ ^ 1);
    if (lane() == 0) {
      barrier_arrive_expecting(&shared_.k_full, Shape::kColumnBytes);
      copy_rows<Shape::kColumns, Shape::kHeadDim, Reads::once>(shared_.k, k_, &shared_.k_full, tile.keys.first,
                                                               tile.kv_head, tile.batch);
    }
  }

  /// Writes the marks of a stage's rows, and the slope for those of keys; the origin is the first key's position.
  __device__ __forceinline__ void mark_rows(int stage, int batch, int first) {
    if (lane() == 0) shared_.slopes[stage] = slope_;
#pragma unroll 1
    for (int row = lane(); row < Shape::kRows; row += 32)
      shared_.marks[stage][row] = slope_ * (query_position(arguments_.alibi, batch, first + row) - origin_);
    __syncwarp();
  }

  /// Writes the entries that a stage's scores need of a table of distances that rows share.
  __device__ __forceinline__ void find_entries(int stage, const ColumnWork& work, int head, int first) {
    const BiasArguments& bias = arguments_.bias;
    if (shares_entries(bias))
      shared_.near[stage].fill(bias, work.batch, head, bias.entry(first, work.keys.first + Shape::kColumns - 1), 1);
  }

  __device__ __forceinline__ void copy_values(const ColumnWork& tile) {
    barrier_wait(&shared_.v_empty, tile_phase_ ^ 1);
    if (lane() == 0) {
      barrier_arrive_expecting(&shared_.v_full, Shape::kColumnBytes);
      copy_rows<Shape::kColumns, Shape::kHeadDim, Reads::once>(shared_.v, v_, &shared_.v_full, tile.keys.first,
                                                               tile.kv_head, tile.batch);
    }
  }

  /// Returns the row tile's index among the row tiles of all heads, padding included.
  __device__ __forceinline__ int flat_tile(int batch, int head, int row_tile) const {
    return (batch * arguments_.query_heads + head) * arguments_.rows.tiles + row_tile;
  }

  /// Sums come in any order, so that no plan with units takes a kernel that makes them.
  static __device__ __forceinline__ TileTokens tokens_of(const DeviceUnits& axis, int batch, int place) {
    if constexpr (Shape::kSums) return {place, axis.tokens};
    return tokens_at(axis, batch, place);
  }
  __device__ __forceinline__ int first_query(int batch, int row_tile) const {
    return tokens_of(arguments_.query_units, batch, row_tile * Shape::kRows).first;
  }

  /// Returns RowStep::masked for a tile whose scores may be masked.
  __device__ __forceinline__ int masked_groups(const ColumnWork& work, int head, int row_tile) const {
    const int group = lane() - 1, half = work.column_tile * Shape::kGroups + group;
    const bool seen =
        lane() > Shape::kGroups ||
        (lane() > 0 && half < arguments_.halves.outer_tiles &&
         (List(arguments_.halves, work.batch, head, half).visited(row_tile / 32) >> row_tile % 32 & 1) != 0);
    return static_cast<int>(__ballot_sync(~0U, !seen));
  }

  __device__ __forceinline__ void copy_queries(int stage, const ColumnWork& work, int head, int row_tile, int list,
                                               int masked) {
    if constexpr (Shape::kLeavesOut) {
      if (masked != 0 && arguments_.halves.tiles != nullptr) masked = masked_groups(work, head, row_tile);
    }
    barrier_wait(&shared_.q_empty[stage], phases_.of(stage) ^ 1);
    if (lane() == 0) {
      const int tile = flat_tile(work.batch, head, row_tile);
      shared_.steps[stage] = {tile, row_tile, list, masked};
      if constexpr (kLocatesScores<Shape>) shared_.heads[stage] = head;
      begin_copies<kWritesBiases<Shape>>(&shared_.q_full[stage], Shape::kRowBytes + Shape::kStatisticsBytes +
                                                                     (masked != 0 ? MaskOf<Shape>::kCopiedBytes : 0));
      copy_rows<Shape::kRows, Shape::kHeadDim>(shared_.q[stage], q_, &shared_.q_full[stage],
                                               first_query(work.batch, row_tile), head, work.batch);
      copy_bytes(shared_.lse_log2[stage],
                 arguments_.statistics.lse_log2 + static_cast<std::int64_t>(tile) * Shape::kRows,
                 Shape::kStatisticsBytes, &shared_.q_full[stage]);
    }
    __syncwarp();
    if (masked != 0)
      MaskOf<Shape>::copy(shared_.mask, arguments_.mask,
                          {list, row_tile * Shape::kRows, work.column_tile * Shape::kColumns, stage},
                          &shared_.q_full[stage]);
    // While the copies are on their way.
    if constexpr (Biases<Shape>) mark_rows(stage, work.batch, first_query(work.batch, row_tile));
    if constexpr (AddsBias<Shape>) find_entries(stage, work, head, first_query(work.batch, row_tile));
    __syncwarp();
    if (kWritesBiases<Shape> && lane() == 0) barrier_arrive(&shared_.q_full[stage]);
  }

  __device__ __forceinline__ void copy_gradients(int stage, int batch, int head, int row_tile) {
    // A single stage has its own phase.
    constexpr bool kSingle = Shape::kGradientStages == 1;
    barrier_wait(&shared_.grad_o_empty[stage], (kSingle ? gradient_phase_ : phases_.of(stage)) ^ 1);
    if constexpr (kSingle) gradient_phase_ ^= 1;
    if (lane() == 0) {
      barrier_arrive_expecting(&shared_.grad_o_full[stage], Shape::kRowBytes + Shape::kStatisticsBytes);
      copy_rows<Shape::kRows, Shape::kHeadDim>(shared_.grad_o[stage], grad_o_, &shared_.grad_o_full[stage],
                                               first_query(batch, row_tile), head, batch);
      copy_bytes(shared_.dot[stage],
                 arguments_.statistics.dot + static_cast<std::int64_t>(flat_tile(batch, head, row_tile)) * Shape::kRows,
                 Shape::kStatisticsBytes, &shared_.grad_o_full[stage]);
    }
    __syncwarp();
  }

  /// Copies the values of a bias for a row tile, a panel for each group. They are read soon after the row tile before
  /// has begun, so nothing that is copied later waits for this.
  __device__ __forceinline__ void copy_bias(const ColumnWork& work, int head, int row_tile) {
    if (!bias_.exists()) return;
    barrier_wait(shared_.bias_empty, phases_.of(StagePhases::kBias) ^ 1);
    phases_.flip(StagePhases::kBias);
    if (lane() == 0) {
      barrier_arrive_expecting(shared_.bias_full, sizeof(shared_.bias));
#pragma unroll 1
      for (int group = 0; group < Shape::kGroups; ++group)
        bias_.copy_panel(shared_.bias[group], shared_.bias_full, work.batch, head, first_query(work.batch, row_tile),
                         work.keys.first + group * kPanel);
    }
    __syncwarp();
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  const CUtensorMap *q_, *k_, *v_, *grad_o_;
  std::uint32_t tile_phase_ = 0;
  RingPosition<Shape::kStages> work_;
  StagePhases phases_;
  std::uint32_t gradient_phase_ = 0;
  float slope_, origin_;  // of the query head and of the key tile, for kernels that bias scores
  int ready_ = -1;        // the bundle of row tiles that was last seen to be ready
  [[no_unique_address]] CopiedBias<Shape> bias_;
};

}  // namespace flashmask::cuda::sm90
