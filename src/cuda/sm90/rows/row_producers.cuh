// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/rows/row_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that takes row tiles from the counter, ahead of the others, and publishes how many tiles each has.
template <class Shape>
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(RowMemory<Shape>& shared, const RowArguments& arguments,
                                       const RowTensors& tensors)
      : shared_(shared), arguments_(arguments), tensors_(tensors), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    const int row_tiles = used_row_tiles();
    const int items = arguments_.choice.has_the_work() ? arguments_.batch * arguments_.query_heads * row_tiles : 0;
    const int section_heads = has_few_tiles() ? arguments_.query_heads : arguments_.section_heads;
    for (int item = blockIdx.x; item < items; item = next_item()) {
      RowTile tile(item, arguments_, section_heads, row_tiles);
      if constexpr (CopiesBias<Shape>) {
        // Then those that share values of a bias find them in the L2 cache.
        if (arguments_.score.bias.batch == 0) tile.count_batch_first(arguments_);
      }
      const VisitedTiles count =
          TileList<true, Shape::kForm>(arguments_.map, tile.batch, tile.head, tile.row_tile).count(lane_);
      const Work work{tile, tokens_at(arguments_.query_units, tile.batch, tile.row_tile * Shape::kRows), count.masked,
                      count.full};
      publish(work);
      delays_next_ = work.tiles() > kManyTiles;
      if (Shape::kQueryStages == 1 && lane_ == 0 && work.tiles() > 0) prefetch_queries(work);
    }
    publish({RowTile::none(), {0, 0}, 0, 0});
  }

 private:
  /// Returns whether row tiles have few tiles on average. If so, all heads of a batch entry run side by side, as their
  /// rows lie in memory.
  __device__ __forceinline__ bool has_few_tiles() const {
    const TileChoice& choice = arguments_.choice;
    const std::uint32_t* const visited = choice.small ? choice.visited_small : choice.visited;
    return visited != nullptr && *visited <= static_cast<std::uint32_t>(kFewTiles * arguments_.map.all_outer_tiles());
  }

  /// Returns how many row tiles of a head have rows, in the batch entry that has most.
  __device__ __forceinline__ int used_row_tiles() const {
    const DeviceUnits& rows = arguments_.query_units;
    return rows.used == nullptr ? arguments_.map.outer_tiles : *rows.used * (rows.size / Shape::kRows);
  }

  /// Takes an item only when there is room to publish it, and after a row tile of many tiles only near its end;
  /// otherwise this block would hold a row tile that another block could begin.
  __device__ __forceinline__ int next_item() {
    int item = 0;
    barrier_wait(&shared_.work_empty[work_.slot], work_.phase ^ 1);
    if (delays_next_) barrier_wait(&shared_.work_empty[published_.slot], published_.phase);
    if (lane_ == 0) item = static_cast<int>(gridDim.x) + atomicAdd(arguments_.next_item, 1);
    return __shfl_sync(~0U, item, 0);
  }

  /// Publishes work in the next slot. The slot is free: it is the first one, or next_item() has waited for it.
  __device__ __forceinline__ void publish(const Work& work) {
    if (lane_ == 0) {
      shared_.work[work_.slot] = work;
      barrier_arrive(&shared_.work_full[work_.slot]);
    }
    __syncwarp();
    published_ = work_;
    work_.advance();
  }

  /// Prefetches the rows into the L2 cache, for shapes whose only buffer of Q is still in use.
  __device__ __forceinline__ void prefetch_queries(const Work& work) {
    prefetch_rows<Shape::kHeadDim>(tensors_.q, work.rows.first, work.tile.head, work.tile.batch);
    if constexpr (Shape::kReadsOutputGradient)
      prefetch_rows<Shape::kValueDim>(tensors_.grad_o, work.rows.first, work.tile.head, work.tile.batch);
  }

  RowMemory<Shape>& shared_;
  const RowArguments& arguments_;
  const RowTensors& tensors_;
  int lane_;
  bool delays_next_ = false;
  RingPosition<kWorkSlots> work_, published_;
};

/// One warp that keeps the rings of Q, K and V filled.
template <class Shape>
class Producer {
 public:
  __device__ __forceinline__ Producer(RowMemory<Shape>& shared, const RowArguments& arguments,
                                      const RowTensors& tensors)
      : shared_(shared), arguments_(arguments), tensors_(tensors), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    for (Work work = await_work(shared_, work_); work.exists(); work = await_work(shared_, work_)) {
      if (work.tiles() <= kTilesAhead) release_work(shared_, work_);
      if (work.tiles() == 0) continue;
      if constexpr (Shape::kQueryStages > 1) copy_queries(work);
      copy_tiles(work);
    }
  }

 private:
  __device__ __forceinline__ void copy_queries(const Work& work) {
    const RowTile& tile = work.tile;
    barrier_wait(&shared_.q_empty[queries_.slot], queries_.phase ^ 1);
    if (lane_ == 0) {
      std::uint64_t* full = &shared_.q_full[queries_.slot];
      std::uint8_t* q = shared_.q[queries_.slot];
      const int row = work.rows.first;
      barrier_arrive_expecting(full, Shape::kQueryBytes);
      copy_rows<Shape::kRows, Shape::kHeadDim>(q, tensors_.q, full, row, tile.head, tile.batch);
      if constexpr (Shape::kReadsOutputGradient)
        copy_rows<Shape::kRows, Shape::kValueDim>(q + Shape::kRows * Shape::kHeadDim * 2, tensors_.grad_o, full, row,
                                                  tile.head, tile.batch);
    }
    queries_.advance();
  }

  /// Copies tiles in the order in which products read them: the forward is one tile of K ahead of V. A single buffer of
  /// Q is filled after the first tile of K, because it becomes free later than that tile's buffer.
  __device__ __forceinline__ void copy_tiles(const Work& work) {
    const RowTile& tile = work.tile;
    const int kv_head = tile.head / arguments_.head_ratio;
    int before = -1, left = work.tiles();
    if constexpr (Biases<Shape>) {
      slope_ = slope_of(arguments_.score.alibi, tile.batch, tile.head);
      origin_ = query_position(arguments_.score.alibi, tile.batch, work.rows.first);
    }
    if constexpr (AddsBias<Shape>) {
      head_ = tile.head;
      first_row_ = work.rows.first;
    }
    const TileList<true, Shape::kForm> row(arguments_.map, tile.batch, tile.head, tile.row_tile);
    row.for_each_tile(lane_, [&](int column_tile) {
      if (--left == kTilesAhead) release_work(shared_, work_);
      copy_keys(column_tile, kv_head, tile.batch);
      if (const int values = Shape::kReadsOutputGradient ? column_tile : before; values >= 0)
        copy_values(values, kv_head, tile.batch);
      if (Shape::kQueryStages == 1 && before < 0) copy_queries(work);
      before = column_tile;
    });
    if constexpr (!Shape::kReadsOutputGradient) copy_values(before, kv_head, tile.batch);
  }

  __device__ __forceinline__ void copy_keys(int column_tile, int kv_head, int batch) {
    std::uint64_t* const full = &shared_.k_full[keys_.slot];
    barrier_wait(&shared_.k_empty[keys_.slot], keys_.phase ^ 1);
    const int first = first_key(column_tile, batch);
    if (lane_ == 0) {
      if constexpr (Drops<Shape>) shared_.column_tiles[keys_.slot] = column_tile;
      if constexpr (Changes<Shape>) shared_.first_keys[keys_.slot] = first;
      begin_copies<kWritesBiases<Shape>>(full, Shape::kKeyBytes);
      copy_rows<Shape::kColumns, Shape::kHeadDim>(shared_.k[keys_.slot], tensors_.k, full, first, kv_head, batch);
    }
    // While the copy is on its way.
    if constexpr (Biases<Shape>) mark_keys(first, batch);
    if constexpr (AddsBias<Shape>) find_entries(first, batch);
    if (kWritesBiases<Shape> && lane_ == 0) barrier_arrive(full);
    keys_.advance();
  }

  /// Writes the marks of the keys of the current buffer of K.
  __device__ __forceinline__ void mark_keys(int first, int batch) {
#pragma unroll 1
    for (int key = lane_; key < Shape::kColumns; key += 32)
      shared_.marks[keys_.slot][key] = slope_ * (key_position(arguments_.score.alibi, batch, first + key) - origin_);
    __syncwarp();
  }

  /// Writes what scores of the current buffer of K need to find their values of a bias tensor.
  __device__ __forceinline__ void find_entries(int first, int batch) {
    const BiasArguments& bias = arguments_.score.bias;
    if (lane_ == 0) shared_.first_keys[keys_.slot] = first;
    if (shares_entries(bias))
      shared_.near[keys_.slot].fill(bias, batch, head_, bias.entry(first_row_ + Shape::kRows - 1, first), -1);
    __syncwarp();
  }

  __device__ __forceinline__ void copy_values(int column_tile, int kv_head, int batch) {
    barrier_wait(&shared_.v_empty[values_.slot], values_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.v_full[values_.slot], Shape::kValueBytes);
      copy_rows<Shape::kColumns, Shape::kValueDim>(shared_.v[values_.slot], tensors_.v, &shared_.v_full[values_.slot],
                                                   first_key(column_tile, batch), kv_head, batch);
    }
    values_.advance();
  }

  __device__ __forceinline__ int first_key(int column_tile, int batch) const {
    return tokens_at(arguments_.key_units, batch, column_tile * Shape::kColumns).first;
  }

  RowMemory<Shape>& shared_;
  const RowArguments& arguments_;
  const RowTensors& tensors_;
  int lane_;
  float slope_, origin_;  // of the row tile, for kernels that bias scores
  int head_, first_row_;  // of the row tile, for kernels that add a bias tensor
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kKeyStages> keys_;
  RingPosition<Shape::kValueStages> values_;
};

}  // namespace flashmask::cuda::sm90
