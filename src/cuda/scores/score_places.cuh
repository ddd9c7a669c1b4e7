// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace flashmask::cuda {

/// Where a warp's scores lie: the query head, and the first row and column of the sequence, multiples of 8.
struct PlaceByRows {
  static constexpr bool kPairsColumns = true;  // scores 2 n and 2 n + 1 are neighbours in a row
  static constexpr bool kTakesBias = true;     // whether tensors of biases are read
  int batch, head, first_row, first_column;

  /// Row and column of the lane's first score; its others lie rows_to() rows and columns_to() columns further on.
  __device__ __forceinline__ int row(int lane) const { return first_row + lane / 4; }
  __device__ __forceinline__ int column(int lane) const { return first_column + lane % 4 * 2; }
  static __device__ __forceinline__ constexpr int rows_to(int unit, int, int i) { return 16 * unit + i / 2 * 8; }
  static __device__ __forceinline__ constexpr int columns_to(int, int eight, int i) { return 8 * eight + i % 2; }
};
/// Where a warp's transposed scores lie, whose lines are columns.
struct TransposedPlace {
  static constexpr bool kPairsColumns = false, kTakesBias = true;
  int batch, head, first_row, first_column;

  __device__ __forceinline__ int row(int lane) const { return first_row + lane % 4 * 2; }
  __device__ __forceinline__ int column(int lane) const { return first_column + lane / 4; }
  static __device__ __forceinline__ constexpr int rows_to(int, int eight, int i) { return 8 * eight + i % 2; }
  static __device__ __forceinline__ constexpr int columns_to(int unit, int, int i) { return 16 * unit + i / 2 * 8; }
};

}  // namespace flashmask::cuda
