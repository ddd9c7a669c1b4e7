// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/fused/fused_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that reads, for each partial tile, what the consumer needs of the mask.
template <class Shape>
class FusedBuilder {
 public:
  __device__ __forceinline__ FusedBuilder(FusedMemory<Shape>& shared, const FusedArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    for (;; ++step_) {
      const int slot = step_ % Shape::kSteps;
      barrier_wait(&shared_.posted[slot], step_ / Shape::kSteps % 2);
      const FusedStep& step = shared_.steps[slot];
      const Sum sum = step.sum;
      if (step.visits && step.masked) {
        if (sum == Sum::of_rows)
          build_rows(step);
        else
          read_keys(step);
      }
      __syncwarp();
      if (lane_index() == 0) barrier_arrive(&shared_.full[slot]);
      __syncwarp();
      if (sum == Sum::none) return;
    }
  }

 private:
  __device__ __forceinline__ void build_rows(const FusedStep& step) const {
    PartialTile<Shape::kForm, Shape::kRows, Shape::kColumns, Shape::kMaskAtOnce> partial(
        arguments_.mask, step.list, step.row_tile * Shape::kRows, step.column_tile * Shape::kColumns);
    await_end(shared_, step_ - Shape::kMasks);
    partial.build(shared_.masks[step_ % Shape::kMasks].of_rows);
  }

  __device__ __forceinline__ void read_keys(const FusedStep& step) const {
    const typename Shape::Mask::Keys keys(
        arguments_.mask, {step.list, step.row_tile * Shape::kRows, step.column_tile * Shape::kColumns, 0});
    await_end(shared_, step_ - Shape::kMasks);
    keys.store(shared_.masks[step_ % Shape::kMasks].of_keys);
  }

  FusedMemory<Shape>& shared_;
  const FusedArguments& arguments_;
  int step_ = 0;
};

}  // namespace flashmask::cuda::sm90
