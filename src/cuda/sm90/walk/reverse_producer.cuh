// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/reverse_memory.cuh"
#include "cuda/sm90/walk/walk_producer.cuh"

/// The producer group of the walk from last to first; factors are made as for the other walk.
namespace flashmask::cuda::sm90 {

/// Asks for tiles, by one thread.
template <class Shape>
__device__ __forceinline__ void copy_tiles(ReverseMemory<Shape>& shared, const ReverseArguments& arguments, int begin,
                                           int end) {
  RingCounter<Shape::kStages> at;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const WalkVisit visit = visit_at(arguments, i, end);
    const int key_head = visit.head / arguments.group, stage = at.slot(), key = Shape::kDim * visit.column_slice,
              value = Shape::kDim * visit.inner_slice;
    const auto copy = [&](std::uint8_t* tile, const CUtensorMap& map, std::uint64_t* barrier, int head, int column) {
#pragma unroll
      for (int panel = 0; panel < Shape::kDim / kPanel; ++panel)
        copy_box<Reads::once>(tile + panel * Shape::kTilePanel, &map, barrier, column + panel * kPanel, head, visit.row,
                              visit.batch);
    };
    if constexpr (Shape::kGates) {
      // The state group reads them straight from global memory, and would wait for it twice in each step.
      constexpr int kStateUnits = 16 * 128;
      prefetch_bytes(arguments.parts.states + arguments.parts.at(visit) * kStateUnits, kStateUnits * sizeof(uint4));
    }
    barrier_wait(&shared.qg_empty[stage], at.phase() ^ 1);
    barrier_arrive_expecting(&shared.qg_full[stage], 2 * Shape::kTileBytes);
    copy(shared.q[stage], arguments.q, &shared.qg_full[stage], key_head, key);
    copy(shared.g[stage], arguments.g, &shared.qg_full[stage], visit.head, value);
    barrier_wait(&shared.kv_empty[stage], at.phase() ^ 1);
    shared.visits[stage] = visit;
    barrier_arrive_expecting(&shared.kv_full[stage], 2 * Shape::kTileBytes);
    copy(shared.k[stage], arguments.k, &shared.kv_full[stage], key_head, key);
    copy(shared.v[stage], arguments.v, &shared.kv_full[stage], visit.head, value);
    at.advance();
  }
}

/// Clears the rows of q and g behind a node's end, by a warp.
template <class Shape>
__device__ __forceinline__ void clear_rows(ReverseMemory<Shape>& shared, const ReverseArguments& arguments, int begin,
                                           int end) {
  RingCounter<Shape::kStages> at;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const int tokens = visit_at(arguments, i, end).tokens, stage = at.slot();
    barrier_wait(&shared.qg_full[stage], at.phase());
    if (tokens < kWalkTokens) {
      clear_tile<Shape::kDim>(shared.q[stage], tokens);
      clear_tile<Shape::kDim>(shared.g[stage], tokens);
      fence_stores_for_async();
    }
    barrier_arrive(&shared.cleared[stage]);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared.qg_empty[stage]);
    at.advance();
  }
}

}  // namespace flashmask::cuda::sm90
