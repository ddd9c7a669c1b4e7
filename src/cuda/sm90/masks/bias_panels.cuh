// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/mma.h"
#include "cuda/sm90/instructions/copy_rows.cuh"

/// Panels of a bias of each score in shared memory: rows of 64 keys, 128 bytes, with 128-byte swizzle, as the copy
/// engine leaves them.
namespace flashmask::cuda::sm90 {

/// Adds a panel's values, times `factor`, to the scores of 16 rows, of which `first_row` is the first. A load brings
/// four matrices of 8 × 8: of both eights of rows, two eights of keys.
template <class T>
__device__ __forceinline__ void add_panel(float (&s)[kPanel / 2], const std::uint8_t* panel, int first_row,
                                          float factor) {
  const std::uint32_t lane = lane_index(), in_matrix = lane % 8, row = first_row + lane / 8 % 2 * 8 + in_matrix;
  const std::uint32_t address = shared_address(panel) + row * kPanel * 2, chunk = (lane / 16 ^ in_matrix) * 16;
#pragma unroll
  for (int eight = 0; eight < kPanel / 8; eight += 2) {
    std::uint32_t words[4];
    load_matrices(words, address + (chunk ^ eight * 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = unpack<T>(words[i]);
      float* const two = s + 4 * (eight + i / 2) + 2 * (i % 2);
      two[0] = fmaf(values.x, factor, two[0]);
      two[1] = fmaf(values.y, factor, two[1]);
    }
  }
}

}  // namespace flashmask::cuda::sm90
