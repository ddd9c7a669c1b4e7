// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/instructions/lane_exchanges.cuh"

/// Stores accumulators straight to rows in global memory, as 16-bit numbers or float32.
namespace flashmask::cuda {

/// Stores the thread's two rows of a head's result, `first` and the one 8 further on, times their factors. Takes four
/// groups of eight columns at a time: a quad exchanges words, so that each thread stores 16 bytes of one group. Two
/// groups left over are stored for both rows at once.
template <class T, int kCount>
__device__ __forceinline__ void store_rows(const float (&d)[kCount], const float (&factor)[2], T* out,
                                           std::int64_t row_stride, int first, int rows, int dim) {
  constexpr int kGroups = kCount / 4;
  static_assert(kGroups % 2 == 0);
  const int quad = lane_index() % 4;
#pragma unroll
  for (int group = 0; group < kGroups / 4; ++group) {
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
  if constexpr (kGroups % 4 == 2) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, at = (kGroups - 2 + i % 2) * 4 + row * 2;
      words[i] = pack<T>(d[at] * factor[row], d[at + 1] * factor[row]);
    }
    transpose_in_quad(words, quad);
    const int column = (kGroups - 2 + quad % 2) * 8, at_row = first + quad / 2 * 8;
    if (at_row < rows && column < dim)
      __stcs(reinterpret_cast<uint4*>(out + at_row * row_stride + column),
             make_uint4(words[0], words[1], words[2], words[3]));
  }
}

/// store_rows() for float32, without an exchange: a quad's pairs of one group already are 32 contiguous bytes.
template <int kCount>
__device__ __forceinline__ void store_rows(const float (&d)[kCount], const float (&factor)[2], float* out,
                                           std::int64_t row_stride, int first, int rows, int dim) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at_row = first + 8 * row;
    if (at_row >= rows) continue;
    float* const to = out + at_row * row_stride + lane_index() % 4 * 2;
#pragma unroll
    for (int group = 0; group < kCount / 4; ++group) {
      const int at = group * 4 + row * 2;
      if (group * 8 < dim)
        __stcs(reinterpret_cast<float2*>(to + group * 8), float2{d[at] * factor[row], d[at + 1] * factor[row]});
    }
  }
}

}  // namespace flashmask::cuda
