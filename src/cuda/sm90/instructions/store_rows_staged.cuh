// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/instructions/copy_rows.cuh"

/// Stores accumulators as rows of 16-bit numbers in global memory, through shared memory that a group has to itself.
namespace flashmask::cuda::sm90 {

constexpr int kWarpRows = 16;  // per warp, of a warpgroup's 64

/// Maps of a tensor for boxes of kWarpRows rows, and of one.
struct StoreMaps {
  const CUtensorMap *rows, *row;
};

/// Stores a warpgroup's 64 rows of results, each times its factor, from row `first` of a head on; each warp stores its
/// own kWarpRows. The rows go through shared memory in wgmma's swizzle: `panels` is where the group's rows begin in the
/// first panel of 64 columns, and panels lie `panel_bytes` apart. Lanes commit one group of stores each. The
/// map's boxes have kWarpRows rows; a warp whose rows end at `end` earlier stores a box for each of them. Columns go to
/// the tensor's from `column` on.
template <class T, int kCount>
__device__ __forceinline__ void store_rows_staged(const float (&d)[kCount], const float (&factor)[2],
                                                  std::uint8_t* panels, int panel_bytes, const StoreMaps& maps,
                                                  int first, int end, int head, int batch, int column = 0) {
  const int lane = lane_index(), warp = threadIdx.x % 128 / 32, in_matrix = lane % 8;
  std::uint8_t* const own = panels + warp * kWarpRows * kPanel * 2;
  const std::uint32_t address =
      shared_address(own) + (lane / 8 % 2 * 8 + in_matrix) * kPanel * 2 + (lane / 16 ^ in_matrix) * 16;
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words[j] = pack<T>(d[8 * i + 2 * j] * factor[j % 2], d[8 * i + 2 * j + 1] * factor[j % 2]);
    store_matrices((address ^ i % 4 * 32) + i / 4 * panel_bytes, words);
  }
  fence_stores_for_async();
  __syncwarp();
  const int own_first = first + warp * kWarpRows, rows = end - own_first;
  const bool whole = rows >= kWarpRows;
  if (lane < (whole ? 1 : rows)) {
#pragma unroll
    for (int panel = 0; panel < kCount / 32; ++panel)
      store_box(whole ? maps.rows : maps.row, own + panel * panel_bytes + lane * kPanel * 2, column + panel * kPanel,
                head, own_first + lane, batch);
    commit_stores();
  }
}

}  // namespace flashmask::cuda::sm90
