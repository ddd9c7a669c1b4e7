// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/masks/bias_panels.cuh"
#include "cuda/sm90/rows/row_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that keeps the rings of a bias's panels filled, in the order in which tiles are computed.
template <class Shape>
class BiasProducer {
 public:
  __device__ __forceinline__ BiasProducer(RowMemory<Shape>& shared, const RowArguments& arguments, const BiasMap* bias)
      : shared_(shared), arguments_(arguments), bias_(bias), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      if (!bias_.exists() || work.tiles() == 0) continue;
      const RowTile& tile = work.tile;
      const TileList<true, Shape::kForm> row(arguments_.map, tile.batch, tile.head, tile.row_tile);
      row.for_each_tile(lane_, [&](int column_tile) {
        const int first = tokens_at(arguments_.key_units, tile.batch, column_tile * Shape::kColumns).first;
#pragma unroll 1
        for (int panel = 0; panel < Shape::kColumns / kPanel; ++panel) copy_panels(work, first + panel * kPanel);
      });
    }
  }

 private:
  /// Copies the next 64 keys for each group.
  __device__ __forceinline__ void copy_panels(const Work& work, int first_key) {
#pragma unroll 1
    for (int group = 0; group < Shape::kGroups; ++group) {
      constexpr int kSharers = kBiasSharers<Shape>;
      std::uint64_t* const full = &shared_.bias_full[slots_.slot][group / kSharers];
      if (group % kSharers == 0) barrier_wait(&shared_.bias_empty[slots_.slot][group / kSharers], slots_.phase ^ 1);
      if (lane_ == 0) {
        if (group % kSharers == 0) barrier_arrive_expecting(full, kSharers * kBiasPanelBytes);
        bias_.copy_panel(shared_.bias[slots_.slot][group], full, work.tile.batch, work.tile.head,
                         work.rows.first + group * kBiasPanelRows, first_key);
      }
      __syncwarp();
    }
    slots_.advance();
  }

  RowMemory<Shape>& shared_;
  const RowArguments& arguments_;
  CopiedBias<Shape> bias_;
  int lane_;
  RingPosition<kWorkSlots> work_;
  RingPosition<bias_slots<Shape>()> slots_;
};

}  // namespace flashmask::cuda::sm90
