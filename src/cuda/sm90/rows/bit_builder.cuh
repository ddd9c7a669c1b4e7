// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/rows/row_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One or two warps that make the bits of masked tiles in accumulator layout; two warps take every other tile each. A
/// slot always belongs to the same warp, so that none can run ahead of a slot by more than one phase of its barrier.
template <class Shape>
class BitBuilder {
  static_assert(Shape::kBitSlots % Shape::kBuilderWarps == 0);

 public:
  __device__ __forceinline__ BitBuilder(RowMemory<Shape>& shared, const RowArguments& arguments, int builder)
      : shared_(shared), arguments_(arguments), lane_(threadIdx.x % 32), turn_(builder) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      if (work.masked_tiles == 0) continue;
      const RowTile& tile = work.tile;
      const TileList<true, Shape::kForm> row(arguments_.map, tile.batch, tile.head, tile.row_tile);
      row.for_each_masked_tile(lane_, [&](int column_tile) {
        if (turn_ == 0) build_in_turn(tile, row.list, column_tile);
        turn_ = turn_ == 0 ? Shape::kBuilderWarps - 1 : turn_ - 1;
        bits_.advance();
      });
    }
  }

 private:
  __device__ __forceinline__ void build_in_turn(const RowTile& tile, int list, int column_tile) {
    PartialTile<Shape::kForm, Shape::kRows, Shape::kColumns, Shape::kMaskAtOnce> partial(
        arguments_.mask, list, tile.row_tile * Shape::kRows, column_tile * Shape::kColumns);
    barrier_wait(&shared_.bits_empty[bits_.slot], bits_.phase ^ 1);
    FragmentBits<Shape::kRows>& bits = shared_.bits[bits_.slot];
    partial.build(bits);
    __syncwarp();
    if constexpr (Shape::kSkipsHidden) {
      // A plan that visits every tile computes every score: no group skips a tile then.
      const std::uint32_t hidden = arguments_.map.visit_all ? 0 : hidden_groups<Shape::kColumns>(bits);
      if (lane_ == 0) bits.hidden = hidden;
    }
    if (lane_ == 0) barrier_arrive(&shared_.bits_full[bits_.slot]);
  }

  RowMemory<Shape>& shared_;
  const RowArguments& arguments_;
  int lane_;
  int turn_;
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kBitSlots> bits_;
};

}  // namespace flashmask::cuda::sm90
