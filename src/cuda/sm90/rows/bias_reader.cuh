// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/masks/bias_panels.cuh"
#include "cuda/sm90/rows/row_memory.cuh"

namespace flashmask::cuda::sm90 {

/// A warp's way through its group's ring of a bias's panels, which BiasProducer fills. Empty for kernels that copy no
/// bias.
template <class Shape>
class BiasReader : public CopiedBias<Shape> {
 public:
  using CopiedBias<Shape>::CopiedBias;
  template <int kScores>
  __device__ __forceinline__ void add_next(float (&)[kScores], RowMemory<Shape>&, int, int, int, float) {}
};

template <CopiesBias Shape>
class BiasReader<Shape> : public CopiedBias<Shape> {
  /// Where one slot holds a whole tile, its phase is the number of K's buffer, of which there are two: 256 dims have no
  /// register for another.
  static constexpr bool kFollowsKeys = Shape::kBiasSlots == 1;
  static_assert(!kFollowsKeys || (Shape::kColumns == kPanel && Shape::kKeyStages == 2));

 public:
  using CopiedBias<Shape>::CopiedBias;

  /// Adds the panels of the next tile, times `factor`, to the warp's scores of it, and gives back the slot of each.
  /// key_slot: the tile's buffer of K; first_row: the warp's, in the row
  /// tile, as the groups' panels lie one behind the other.
  template <int kScores>
  __device__ __forceinline__ void add_next(float (&s)[kScores], RowMemory<Shape>& shared, int key_slot, int group,
                                           int first_row, float factor) {
    const int ring = kBiasSharers<Shape> == 1 ? group : 0;
#pragma unroll
    for (int first = 0; first < kScores; first += kPanel / 2) {
      barrier_wait(&shared.bias_full[panels_.slot][ring], kFollowsKeys ? key_slot : panels_.phase);
      auto& of_panel = reinterpret_cast<float(&)[kPanel / 2]>(s[first]);
      add_panel<typename Shape::Element>(of_panel, shared.bias[panels_.slot][0], first_row, factor);
      __syncwarp();
      if (lane_index() == 0) barrier_arrive_behind(&shared.bias_empty[panels_.slot][ring], word_behind(of_panel));
      panels_.advance();
    }
  }

 private:
  RingPosition<Shape::kBiasSlots> panels_;
};

}  // namespace flashmask::cuda::sm90
