#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm80/instructions/mma.h"
#include "cuda/sm80/instructions/tensor_rows.h"

/// Tiles of 16-bit numbers in shared memory, as products read them.
namespace flashmask::cuda::sm80 {

/// kRows × kDim, in panels of 16 columns. A panel's row is 32 bytes, two chunks of 16, which trade places in rows
/// 4 … 7 of every eight: eight rows of a column of chunks lie on all banks. An address of a lane is found once; steps
/// along rows and columns are constants.
///
///        panel 0            panel 1
/// row 0  c0 c1              c0 c1
///     …
///     3  c0 c1              c0 c1
///     4  c1 c0              c1 c0
///     …
///     7  c1 c0              c1 c0
///     8  c0 c1              …
template <int kRows_, int kDim_>
struct SharedTile {
  static constexpr int kRows = kRows_, kDim = kDim_, kPanels = kDim / 16, kRowBytes = 32,
                       kPanelBytes = kRows * kRowBytes, kBytes = kRows * kDim * 2;
  static_assert(kRows % 8 == 0 && kDim % 16 == 0);

  /// Of a chunk of 8 numbers in a panel, from the panel's beginning.
  static __device__ __forceinline__ std::uint32_t chunk(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ row / 4 % 2) * 16);
  }
  /// From a lane's address to the same of another panel, or of a row further on by a multiple of 8.
  static __device__ __forceinline__ constexpr std::uint32_t step(int row, int panel) {
    return static_cast<std::uint32_t>(panel * kPanelBytes + row * kRowBytes);
  }

  /// Where the lane reads 16 × 16 numbers with load_matrices() or, transposed, load_matrices_transposed(). By rows the
  /// four words are a fragment a of these rows. Transposed, with rows the inner side of the product, words 0 and 1 are
  /// a fragment b of the first 8 columns, words 2 and 3 of the next 8.
  static __device__ __forceinline__ std::uint32_t lane_rows() {
    const unsigned lane = lane_index();
    return chunk(lane % 16, lane / 16);
  }
  /// Where the lane reads 16 × 16 numbers with load_matrices() as fragments b, with columns the inner side: words 0 and
  /// 1 are that of the first 8 rows, words 2 and 3 of the next 8. Transposed, with rows outside and columns inside
  /// changed over, the four words are a fragment a of 16 columns.
  static __device__ __forceinline__ std::uint32_t lane_columns() {
    const unsigned lane = lane_index();
    return chunk(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  /// Asks for a tile of the rows from `first` on, by kThreads threads: this is number `thread`. What lies past the last
  /// row or the last dim becomes 0. Eight threads copy 4 rows of a panel; neighbouring eights neighbouring panels, up
  /// to 256 bytes of a row.
  template <int kThreads>
  static __device__ __forceinline__ void copy(std::uint32_t tile, Rows from, int first, unsigned thread) {
    constexpr int kAcross = kPanels % 8 == 0 ? 8 : kPanels % 4 == 0 ? 4 : kPanels % 2 == 0 ? 2 : 1;
    constexpr int kDown = kThreads / 8 / kAcross * 4;  // rows at once
    static_assert(kDown % 8 == 0 && kRows % kDown == 0);
    const int row = static_cast<int>(thread / (8 * kAcross) * 4 + thread % 8 / 2), panel = thread / 8 % kAcross, half = thread % 2;
    const int column = panel * 16 + half * 8;
    const auto* source = from.first + (first + row) * from.stride + column;
    const std::uint32_t to = tile + step(0, panel) + chunk(row, half);
    const int rows_left = from.rows - first - row;
#pragma unroll
    for (int down = 0; down < kRows; down += kDown) {
#pragma unroll
      for (int across = 0; across < kPanels; across += kAcross)
        copy_16(to + step(down, across), source + across * 16, down < rows_left && column + across * 16 < from.dim);
      source += kDown * from.stride;
    }
  }
};

}  // namespace flashmask::cuda::sm80
