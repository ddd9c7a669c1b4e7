// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/fused/fused_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that takes segments of positions from the counter and posts the steps of each position, first those of its
/// row tile, then those of its key tile. It copies the tiles of a step that are not in shared memory from earlier
/// steps.
template <class Shape>
class FusedProducer {
 public:
  __device__ __forceinline__ FusedProducer(FusedMemory<Shape>& shared, const FusedArguments& arguments,
                                           const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v,
                                           const CUtensorMap* grad_o)
      : shared_(shared), arguments_(arguments), q_(q), k_(k), v_(v), grad_o_(grad_o) {}

  __device__ __forceinline__ void run() {
    const int items = arguments_.segments.all_tiles();
    for (int item = blockIdx.x; item < items; item = next_item()) {
      const SectionTile segment = arguments_.segments.tile(item);
      const int first = segment.tile * arguments_.segment_positions;
      post_segment(segment.section, segment.head % arguments_.kv_heads, first,
                   min(first + arguments_.segment_positions, arguments_.positions));
    }
    next_ = {};
    post();
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }

  __device__ __forceinline__ int next_item() {
    int item = 0;
    if (lane() == 0) item = static_cast<int>(gridDim.x) + atomicAdd(arguments_.next_item, 1);
    return __shfl_sync(~0U, item, 0);
  }

  __device__ __forceinline__ void post_segment(int batch, int kv_head, int first, int end) {
    const int first_head = kv_head * arguments_.head_ratio, end_head = first_head + arguments_.head_ratio;
#pragma unroll 1
    for (int at = first; at < end; ++at) {
      if (at < arguments_.rows.outer_tiles) {
#pragma unroll 1
        for (int head = first_head; head < end_head; ++head) {
          begin(Sum::of_rows, batch, head, at);
          add_steps(arguments_.rows, head);
          finish();
        }
      }
      if (at < arguments_.columns.outer_tiles) {
        begin(Sum::of_keys, batch, kv_head, at);
#pragma unroll 1
        for (int head = first_head; head < end_head; ++head) add_steps(arguments_.columns, head);
        finish();
      }
    }
  }

  __device__ __forceinline__ void begin(Sum sum, int batch, int head, int tile) {
    next_ = {sum, batch, head, tile, 0, 0, 0, 0, 0, false, false, false};
  }

  /// Posts a step only when the next one is found, because a step says whether it is the last of its sum.
  __device__ __forceinline__ void add_steps(const TileMapView& map, int head) {
    const TileList<true, Shape::kForm> list(map, next_.batch, head, next_.tile);
    list.for_each_marked_tile(lane(), [&](int other, bool masked) {
      if (next_.visits) post();
      const bool of_rows = next_.sum == Sum::of_rows;
      next_.row_tile = of_rows ? next_.tile : other;
      next_.column_tile = of_rows ? other : next_.tile;
      next_.list = list.list;
      next_.masked = masked;
      next_.visits = true;
      query_head_ = head;
    });
  }

  __device__ __forceinline__ void finish() {
    next_.last = true;
    post();
  }

  __device__ __forceinline__ void post() {
    const int slot = step_ % Shape::kSteps;
    await_end(shared_, step_ - Shape::kSteps);
    bool copies_queries = false, copies_keys = false;
    if (next_.visits) find_pairs(copies_queries, copies_keys);
    if (lane() == 0) {
      shared_.steps[slot] = next_;
      barrier_arrive(&shared_.posted[slot]);
      std::uint64_t* const full = &shared_.full[slot];
      barrier_arrive_expecting(full, (copies_queries ? 2 * (Shape::kTileBytes + Shape::kStatisticsBytes) : 0) +
                                         (copies_keys ? 2 * Shape::kTileBytes : 0));
      if (copies_queries) copy_queries(full);
      if (copies_keys) copy_keys(full);
    }
    __syncwarp();
    ++step_;
  }

  /// Finds the buffers of the step's tiles, or makes room for them.
  __device__ __forceinline__ void find_pairs(bool& copies_queries, bool& copies_keys) {
    const int queries = flat_head() * arguments_.rows.outer_tiles + next_.row_tile;
    const int kv_head = next_.batch * arguments_.kv_heads + query_head_ / arguments_.head_ratio;
    const int keys = ~(kv_head * arguments_.columns.outer_tiles + next_.column_tile);
    int query_pair = find(queries), key_pair = find(keys);
    copies_queries = query_pair < 0;
    if (copies_queries) query_pair = make_room(queries, key_pair);
    copies_keys = key_pair < 0;
    if (copies_keys) key_pair = make_room(keys, query_pair);
    if (lane() == query_pair || lane() == key_pair) last_used_ = step_;
    next_.query_pair = static_cast<std::int16_t>(query_pair);
    next_.key_pair = static_cast<std::int16_t>(key_pair);
  }

  __device__ __forceinline__ int flat_head() const { return next_.batch * arguments_.query_heads + query_head_; }

  /// Returns the pair that holds a tile; -1: none.
  __device__ __forceinline__ int find(int tile) const {
    return __ffs(__ballot_sync(~0U, lane() < Shape::kPairs && last_used_ >= 0 && tile_ == tile)) - 1;
  }

  /// Gives a tile the place of the least recently used pair other than `kept`, and returns that pair.
  __device__ __forceinline__ int make_room(int tile, int kept) {
    const int used = lane() < Shape::kPairs && lane() != kept ? last_used_ : step_;
    const int first = __reduce_min_sync(~0U, used), oldest = __ffs(__ballot_sync(~0U, used == first)) - 1;
    if (first > step_ - Shape::kSteps) await_end(shared_, first);
    if (lane() == oldest) tile_ = tile;
    return oldest;
  }

  __device__ __forceinline__ void copy_queries(std::uint64_t* full) const {
    const int row = next_.row_tile * Shape::kRows;
    auto& pair = shared_.pairs[next_.query_pair];
    copy_rows<Shape::kRows, Shape::kHeadDim>(pair[0], q_, full, row, query_head_, next_.batch);
    copy_rows<Shape::kRows, Shape::kHeadDim>(pair[1], grad_o_, full, row, query_head_, next_.batch);
    auto& statistics = shared_.statistics[next_.query_pair];
    const std::int64_t at = flat_head() * arguments_.statistics.padded + row;
    copy_bytes(statistics[0], arguments_.statistics.lse_log2 + at, Shape::kStatisticsBytes, full);
    copy_bytes(statistics[1], arguments_.statistics.dot + at, Shape::kStatisticsBytes, full);
  }

  __device__ __forceinline__ void copy_keys(std::uint64_t* full) const {
    const int row = next_.column_tile * Shape::kColumns, head = query_head_ / arguments_.head_ratio;
    auto& pair = shared_.pairs[next_.key_pair];
    copy_rows<Shape::kColumns, Shape::kHeadDim>(pair[0], k_, full, row, head, next_.batch);
    copy_rows<Shape::kColumns, Shape::kHeadDim>(pair[1], v_, full, row, head, next_.batch);
  }

  FusedMemory<Shape>& shared_;
  const FusedArguments& arguments_;
  const CUtensorMap *q_, *k_, *v_, *grad_o_;
  // State of the pair whose number is the lane's:
  int tile_ = 0;        // a row tile among those of all heads, from 0 on, or a key tile, from -1 down
  int last_used_ = -1;  // the step that used it last; -1: none yet
  int step_ = 0;        // the step that is posted next
  FusedStep next_;
  int query_head_ = 0;  // the query head of next_
};

}  // namespace flashmask::cuda::sm90
