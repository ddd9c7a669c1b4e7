// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/fragment_words.cuh"
#include "cuda/common/mask_reads.cuh"
#include "cuda/plan/words.cuh"

/// Finds which of a warp's transposed scores are masked: FragmentWords with keys for rows and rows for columns. One
/// lane of a quad makes the words of a key, and the others take their bytes from it.
namespace flashmask::cuda::sm80 {

/// Returns the rows that a key's two ranges mask, of the 32 from first_row on, in fragment order.
__device__ __forceinline__ std::uint32_t masked_rows(const std::int32_t (&ends)[4], int first_row) {
  std::uint32_t rows = 0;
#pragma unroll
  for (int range = 0; range < 2; ++range) {
    const int begin = max(ends[2 * range] - first_row, 0);
    rows |= bits_from(begin, max(ends[2 * range + 1] - first_row - begin, 0));
  }
  return fragment_order(rows);
}

/// The words of one of the warp's keys, 32 rows each, which a lane makes and shares.
template <int kUnits, int kRows>
struct KeyWords {
  using Words = FragmentWords<kUnits, kRows>;
  static constexpr int kWords = Words::kWords;

  static __device__ __forceinline__ int lane_key() { return lane_index() % 4 % kEights * 8 + lane_index() / 4; }
  /// Returns the first row of the lane's word i, counted like `first_row`, the first of the warp's kRows rows.
  static __device__ __forceinline__ int lane_row(int first_row, int i) {
    const int own = kRows < 32 * Words::kGroups ? 0 : lane_index() % 4 / kEights * 32;
    return first_row / 32 * 32 + own + 32 * Words::kGroups * i;
  }
  /// Exchanges the lanes' words, which are in fragment order.
  static __device__ __forceinline__ Words share(const std::uint32_t (&own)[kWords], int first_row) {
    Words masked;
#pragma unroll
    for (int i = 0; i < kWords; ++i) masked.words[i] = exchange_bytes<1>(own[i]);
    if constexpr (kRows == 16) masked.words[0] >>= first_row % 32 / 4;
    return masked;
  }

 private:
  static constexpr int kEights = 2 * kUnits;  // eights of keys; a word's other bytes are for 32 rows further on
};

/// The data for a lane to find its key's words: the key's intervals or, with cells, the words themselves. They are
/// requested before the product after which they are used.
template <int kUnits, int kRows>
class KeyMask {
  using Words = KeyWords<kUnits, kRows>;

 public:
  /// Requests the data for the warp's keys from first_key on, and for the rows from `row` on in the cells of row
  /// cell_row.
  __device__ __forceinline__ void ask(const MaskView& mask, int list, int first_key, int cell_row, int row) {
    const int key = first_key + Words::lane_key();
    if (mask.intervals[0] != nullptr) {
      load_intervals(mask, list, key, found_);
    } else {
      const std::uint32_t* const words =
          column_words(mask.cells, find_cell(mask.cells, list, cell_row, key / kCellSize)) + key % kCellSize;
#pragma unroll
      for (int i = 0; i < Words::kWords; ++i)
        found_[i] = static_cast<std::int32_t>(__ldg(words + Words::lane_row(row, i) / 32 * kCellSize));
    }
  }

  /// Returns the mask words for the rows given to ask().
  __device__ __forceinline__ typename Words::Words masked_scores(const MaskView& mask, int cell_row, int row) const {
    std::uint32_t words[Words::kWords];
#pragma unroll
    for (int i = 0; i < Words::kWords; ++i)
      words[i] = mask.intervals[0] != nullptr ? masked_rows(found_, cell_row * kCellSize + Words::lane_row(row, i))
                                              : static_cast<std::uint32_t>(found_[i]);
    return Words::share(words, row);
  }

 private:
  std::int32_t found_[4];
};

}  // namespace flashmask::cuda::sm80
