#pragma once

#include "cuda/sm90/forward_shared.cuh"

namespace flashmask::cuda::sm90 {

/// One warp: takes row tiles from the counter and says how many tiles each has, one row tile ahead of those who work.
template <class Shape>
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(SharedMemory<Shape>& shared, const ForwardArguments& arguments)
      : shared_(shared), arguments_(arguments), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(int items) {
    for (int item = blockIdx.x; item < items; item = next_item()) {
      const RowTile tile(item, arguments_);
      const TileCount count = MapRow(arguments_.map, tile.batch, tile.head, tile.row_tile).count(lane_);
      publish({item, count.masked, count.full});
    }
    publish({-1, 0, 0});
  }

 private:
  /// Taken only once there is room to publish it, lest a block hold a row tile that another could begin.
  __device__ __forceinline__ int next_item() {
    int item = 0;
    barrier_wait(&shared_.work_empty[work_.slot], work_.phase ^ 1);
    if (lane_ == 0) item = static_cast<int>(gridDim.x) + atomicAdd(arguments_.next_item, 1);
    return __shfl_sync(~0U, item, 0);
  }

  /// Into a slot that is free: the first one, or the one that next_item() waited for.
  __device__ __forceinline__ void publish(const Work& work) {
    if (lane_ == 0) {
      shared_.work[work_.slot] = work;
      barrier_arrive(&shared_.work_full[work_.slot]);
    }
    __syncwarp();
    work_.advance();
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  int lane_;
  RingPosition<kWorkSlots> work_;
};

/// One warp: keeps the rings of Q, K and V filled.
template <class Shape>
class Producer {
 public:
  __device__ __forceinline__ Producer(SharedMemory<Shape>& shared, const ForwardArguments& arguments,
                                      const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v)
      : shared_(shared), arguments_(arguments), q_(q), k_(k), v_(v), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.item >= 0; work = take_work(shared_, work_)) {
      if (work.masked_tiles + work.full_tiles == 0) continue;
      const RowTile tile(work.item, arguments_);
      stream(tile, MapRow(arguments_.map, tile.batch, tile.head, tile.row_tile));
    }
  }

 private:
  /// K runs one tile ahead of V, as the products do.
  __device__ __forceinline__ void stream(const RowTile& tile, const MapRow& row) {
    const int kv_head = tile.head / arguments_.head_ratio;
    barrier_wait(&shared_.q_empty[queries_.slot], queries_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.q_full[queries_.slot], Shape::kQueryBytes);
      copy_rows<Shape::kRows, Shape::kHeadDim>(shared_.q[queries_.slot], q_, &shared_.q_full[queries_.slot],
                                               tile.row_tile * Shape::kRows, tile.head, tile.batch);
    }
    queries_.advance();
    int before = -1;
    row.for_each_tile(lane_, [&](int column_tile) {
      copy_keys(column_tile, kv_head, tile.batch);
      if (before >= 0) copy_values(before, kv_head, tile.batch);
      before = column_tile;
    });
    copy_values(before, kv_head, tile.batch);
  }

  __device__ __forceinline__ void copy_keys(int column_tile, int kv_head, int batch) {
    barrier_wait(&shared_.k_empty[keys_.slot], keys_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.k_full[keys_.slot], Shape::kKeyBytes);
      copy_rows<Shape::kColumns, Shape::kHeadDim>(shared_.k[keys_.slot], k_, &shared_.k_full[keys_.slot],
                                                  column_tile * Shape::kColumns, kv_head, batch);
    }
    keys_.advance();
  }

  __device__ __forceinline__ void copy_values(int column_tile, int kv_head, int batch) {
    barrier_wait(&shared_.v_empty[values_.slot], values_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.v_full[values_.slot], Shape::kValueBytes);
      copy_rows<Shape::kColumns, Shape::kValueDim>(shared_.v[values_.slot], v_, &shared_.v_full[values_.slot],
                                                   column_tile * Shape::kColumns, kv_head, batch);
    }
    values_.advance();
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  const CUtensorMap *q_, *k_, *v_;
  int lane_;
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kStages> keys_, values_;
};

}  // namespace flashmask::cuda::sm90
