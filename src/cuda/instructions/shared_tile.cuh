// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "cuda/instructions/mma.h"
#include "cuda/views/tensors.h"

/// Tiles of 16-bit numbers in shared memory, as products read them.
namespace flashmask::cuda {

/// A tile of kRows × kDim, in panels of 16 columns. A panel's row is 32 bytes, two chunks of 16, which are swapped in
/// rows 4 … 7 of every eight, so that eight rows of a column of chunks cover all banks. Panels lie 32 bytes (64, where
/// their number is no multiple of 4) further apart than they are long, so that 128 bytes of a row cover all banks too.
/// A lane's address is computed once; steps along rows and columns are constants.
///
///        panel 0            panel 1
/// row 0  c0 c1              c0 c1
///     …
///     3  c0 c1              c0 c1
///     4  c1 c0              c1 c0
///     …
///     7  c1 c0              c1 c0
///     8  c0 c1              …
///
/// The gap between panels puts copies of a row on different banks; where a tile is seldom or never copied,
/// kApart = false saves it.
template <int kRows_, int kDim_, bool kApart = true>
struct SharedTile {
  static constexpr int kRows = kRows_, kDim = kDim_, kPanels = kDim / 16, kRowBytes = 32,
                       kGapBytes = !kApart            ? 0
                                   : kPanels % 4 == 0 ? 32
                                                      : 64,
                       kPanelBytes = kRows * kRowBytes + kGapBytes, kBytes = kPanels * kPanelBytes;
  static_assert(kRows % 8 == 0 && kDim % 16 == 0);

  /// Returns the offset in bytes of a chunk of 8 numbers from the beginning of its panel.
  static __device__ __forceinline__ std::uint32_t chunk(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ row / 4 % 2) * 16);
  }
  /// Returns the offset from a lane's address to its counterpart in another panel or in a row a multiple of 8 further
  /// on.
  static __device__ __forceinline__ constexpr std::uint32_t step(int row, int panel) {
    return static_cast<std::uint32_t>(panel * kPanelBytes + row * kRowBytes);
  }

  /// Returns where the lane reads 16 × 16 numbers with load_matrices() or, transposed, load_matrices_transposed().
  /// Untransposed, the four words are fragment a of these rows. Transposed, where the product sums over rows, words 0
  /// and 1 are fragment b of the first 8 columns, words 2 and 3 of the next 8.
  static __device__ __forceinline__ std::uint32_t lane_rows() {
    const unsigned lane = lane_index();
    return chunk(lane % 16, lane / 16);
  }
  /// Returns where the lane reads 16 × 16 numbers with load_matrices() as fragments b of a product that sums over
  /// columns: words 0 and 1 are fragment b of the first 8 rows, words 2 and 3 of the next 8. Transposed, where the
  /// product sums over rows, the four words are fragment a of 16 columns.
  static __device__ __forceinline__ std::uint32_t lane_columns() {
    const unsigned lane = lane_index();
    return chunk(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  /// The copies that fill a tile with the rows from `first` on, by kThreads threads of which this is number `thread`.
  /// Numbers past the last row or the last dim become 0, and all do where `first` is negative. Neighbouring threads
  /// copy neighbouring 16 bytes of a row, up to 256. `from` is read at each copy: in shared memory it takes no
  /// registers, and which copies exist is determined once, since a read of its dims would queue behind those of
  /// products. From: Rows where `from` is not in shared memory.
  template <int kThreads, class From = const Rows&>
  class Copies {
    static constexpr int kAcross = kPanels % 8 == 0 ? 8 : kPanels % 4 == 0 ? 4 : kPanels % 2 == 0 ? 2 : 1;
    static constexpr int kDown = kThreads / 2 / kAcross;  // rows at once
    static constexpr int kGroups = kPanels / kAcross;     // groups of columns, one after the other
    static constexpr bool kMarks = std::is_reference_v<From> && kGroups > 1;
    static_assert(kDown % 8 == 0 && kRows % kDown == 0);

   public:
    static constexpr int kCount = kRows / kDown * kGroups;  // copies per thread
    static_assert(kCount < 32);

    __device__ __forceinline__ Copies(std::uint32_t tile, const Rows& from, int first, unsigned thread) : from_(from) {
      const int row = static_cast<int>(thread / (2 * kAcross)), chunk_column = static_cast<int>(thread % (2 * kAcross));
      const int column = chunk_column * 8;
      source_ = from.first + (first + row) * from.stride + column;
      to_ = tile + step(0, chunk_column / 2) + chunk(row, chunk_column % 2);
      rows_ = first < 0 || (kGroups == 1 && column >= from.dim) ? 0 : from.rows - first - row;
      column_ = column;
      if constexpr (kMarks) exists_ = marks();
    }

    /// Issues copy i; to be called with 0, 1, … kCount − 1 in this order.
    __device__ __forceinline__ void ask(int i) {
      const int row = i / kGroups * kDown, group = i % kGroups, column = group * kAcross * 16;
      copy_16(to_ + step(row, group * kAcross), source_ + column, exists(i, row, column));
      if (group + 1 == kGroups && i + 1 < kCount) source_ += kDown * from_.stride;
    }

    /// Issues the copies of part `part` of kParts.
    template <int kParts>
    __device__ __forceinline__ void ask_part(int part) {
#pragma unroll
      for (int i = part * kCount / kParts; i < (part + 1) * kCount / kParts; ++i) ask(i);
    }

    /// Issues the copies of part kPart of kParts and of all later parts.
    template <int kPart, int kParts>
    __device__ __forceinline__ void ask_rest() {
#pragma unroll
      for (int i = kPart * kCount / kParts; i < kCount; ++i) ask(i);
    }

   private:
    /// Returns one bit per copy: whether it exists.
    __device__ __forceinline__ std::uint32_t marks() const {
      constexpr std::uint32_t kAll = (1U << kCount) - 1, kOfGroup = kAll / ((1U << kGroups) - 1);
      std::uint32_t columns = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        if (column_ + group * kAcross * 16 < from_.dim) columns |= kOfGroup << group;
      const int times = min(max(rows_ + kDown - 1, 0) / kDown, kRows / kDown);
      return columns & ((1U << times * kGroups) - 1);
    }

    __device__ __forceinline__ bool exists(int i, int row, int column) const {
      if constexpr (kMarks) return (exists_ >> i & 1) != 0;
      return row < rows_ && (kGroups == 1 || column_ + column < from_.dim);
    }

    From from_;
    const std::uint16_t* source_;
    std::uint32_t to_, exists_;
    int rows_, column_;
  };

  /// Issues all copies of a tile at once.
  template <int kThreads>
  static __device__ __forceinline__ void copy(std::uint32_t tile, Rows from, int first, unsigned thread) {
    Copies<kThreads, Rows>(tile, from, first, thread).template ask_rest<0, 1>();
  }
};

}  // namespace flashmask::cuda
