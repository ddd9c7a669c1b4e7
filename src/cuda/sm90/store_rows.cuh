#pragma once

#include "cuda/sm90/copy_rows.cuh"

/// From accumulators to rows of 16-bit numbers in global memory: straight, or through shared memory where a group has
/// room of its own there.
namespace flashmask::cuda::sm90 {

template <int kDistance>
__device__ __forceinline__ void exchange_in_quad(std::uint32_t& low, std::uint32_t& high, int quad) {
  const bool upper = (quad & kDistance) != 0;
  const std::uint32_t received = __shfl_xor_sync(~0U, upper ? low : high, kDistance);
  (upper ? low : high) = received;
}

/// words[i] of thread t becomes words[t] of thread i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int quad) {
  exchange_in_quad<1>(words[0], words[1], quad);
  exchange_in_quad<1>(words[2], words[3], quad);
  exchange_in_quad<2>(words[0], words[2], quad);
  exchange_in_quad<2>(words[1], words[3], quad);
}

/// Rows of a head's result from `first` on, the thread's own, times their factors. Four groups of eight columns at a
/// time: a quad exchanges words, so that each thread stores 16 bytes of one group.
template <class T, int kCount>
__device__ __forceinline__ void store_rows(const float (&d)[kCount], const float (&factor)[2], T* out,
                                           std::int64_t row_stride, int first, int rows, int dim) {
  const int quad = lane_index() % 4;
#pragma unroll
  for (int group = 0; group < kCount / 16; ++group) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (group * 4 + i) * 4 + row * 2;
        words[i] = pack<T>(d[at] * factor[row], d[at + 1] * factor[row]);
      }
      transpose_in_quad(words, quad);
      const int column = group * 32 + quad * 8;
      const int at_row = first + 8 * row;
      if (at_row < rows && column < dim)
        __stcs(reinterpret_cast<uint4*>(out + at_row * row_stride + column),
               make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
}

constexpr int kWarpRows = 16;  // of a warpgroup's 64

/// A warp's rows of a warpgroup's results, the thread's own times their factors: through shared memory with the swizzle
/// of wgmma, `panel_bytes` from one panel of 64 columns to the next, to row `first` of a head. `panels` is where the
/// group's rows begin in the first of them. Groups of the copy engine's stores: one, of lane 0. The map's boxes have
/// kWarpRows rows.
template <class T, int kCount>
__device__ __forceinline__ void store_rows_staged(const float (&d)[kCount], const float (&factor)[2],
                                                  std::uint8_t* panels, int panel_bytes, const CUtensorMap* map,
                                                  int first, int head, int batch) {
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
  if (lane == 0) {
#pragma unroll
    for (int panel = 0; panel < kCount / 32; ++panel)
      store_box(map, own + panel * panel_bytes, panel * kPanel, head, first + warp * kWarpRows, batch);
    commit_stores();
  }
}

}  // namespace flashmask::cuda::sm90
