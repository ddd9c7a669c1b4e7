// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/backward/column_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that counts the key tiles whose sums for the gradient of q are all in global memory.
template <class Shape>
class ColumnCounter {
 public:
  __device__ __forceinline__ ColumnCounter(ColumnMemory<Shape>& shared, const ColumnArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    for (;; work_.advance()) {
      barrier_wait(&shared_.work_full[work_.slot], work_.phase);
      const ColumnWork work = shared_.work[work_.slot];
      if (work.steps < 0) break;
      barrier_wait(&shared_.work_done[work_.slot], work_.phase);
      __syncwarp();
      if (lane_index() == 0) {
        // Whoever reads the count must also see what consumers added before they arrived.
        __threadfence();
        atomicAdd(arguments_.progress.added + arguments_.columns.bundle_of(work.section, work.column_tile), 1);
        barrier_arrive(&shared_.work_empty[work_.slot]);
      }
      __syncwarp();
    }
  }

 private:
  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  RingPosition<Shape::kStages> work_;
};

}  // namespace flashmask::cuda::sm90
