// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/ptx.h"

namespace flashmask::cuda::sm90 {

constexpr int kPanel = 64;  // elements of a row that one copy and one swizzle cover

/// Copies rows [row, row + kRows) of one head, one panel of 64 columns after another.
template <int kRows, int kDim, Reads kReads = Reads::again>
__device__ __forceinline__ void copy_rows(std::uint8_t* destination, const CUtensorMap* map, std::uint64_t* barrier,
                                          int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < kDim / kPanel; ++panel)
    copy_box<kReads>(destination + panel * kRows * kPanel * 2, map, barrier, panel * kPanel, head, row, batch);
}

/// Brings the rows of the map's box into the L2 cache.
template <int kDim>
__device__ __forceinline__ void prefetch_rows(const CUtensorMap* map, int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < kDim / kPanel; ++panel) prefetch_box(map, panel * kPanel, head, row, batch);
}

}  // namespace flashmask::cuda::sm90
