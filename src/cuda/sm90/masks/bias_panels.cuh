// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/mma.h"
#include "cuda/scores/changes.h"
#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/masks/bias_map.h"

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

/// Does so for scores of 16 keys under 64 rows, transposed. `first_eight`: of the keys, in the panel.
template <class T>
__device__ __forceinline__ void add_panel_transposed(float (&s)[kPanel / 2], const std::uint8_t* panel, int first_eight,
                                                     float factor) {
  const std::uint32_t lane = lane_index(), in_matrix = lane % 8, row = lane / 16 * 8 + in_matrix;
  const std::uint32_t chunk = ((first_eight + lane / 8 % 2) ^ in_matrix) * 16;
  const std::uint32_t address = shared_address(panel) + row * kPanel * 2 + chunk;
#pragma unroll
  for (int eight = 0; eight < kPanel / 8; eight += 2) {
    std::uint32_t words[4];
    load_matrices_transposed(words, address + eight * 8 * kPanel * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = unpack<T>(words[i]);
      float* const two = s + 4 * (eight + i / 2) + 2 * (i % 2);
      two[0] = fmaf(values.x, factor, two[0]);
      two[1] = fmaf(values.y, factor, two[1]);
    }
  }
}

/// Returns a word that is there once all values of a panel have been added: of each load, a score that it changed.
__device__ __forceinline__ std::uint32_t word_behind(const float (&s)[kPanel / 2]) {
  return __float_as_uint(s[0] + s[8] + s[16] + s[24]);
}

/// The bias that the copy engine brings; empty for kernels that copy none.
template <class Shape>
class CopiedBias {
 public:
  __device__ __forceinline__ explicit CopiedBias(const BiasMap*) {}
  static __device__ constexpr bool exists() { return false; }
};

template <CopiesBias Shape>
class CopiedBias<Shape> {
 public:
  __device__ __forceinline__ explicit CopiedBias(const BiasMap* map) : map_(map) {}

  /// Whether this call has one that the copy engine can read.
  __device__ __forceinline__ bool exists() const { return map_->exists; }

  __device__ __forceinline__ void copy_panel(std::uint8_t* to, std::uint64_t* full, int batch, int head, int first_row,
                                             int first_key) const {
    copy_box(to, &map_->map, full, first_key, head * map_->of_head, first_row, batch * map_->of_batch);
  }

 private:
  const BiasMap* map_;
};

}  // namespace flashmask::cuda::sm90
