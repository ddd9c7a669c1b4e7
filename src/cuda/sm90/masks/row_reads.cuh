// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/fragment_words.cuh"
#include "cuda/common/mask_reads.cuh"

namespace flashmask::cuda::sm90 {

/// Makes the words of a warp's 16 rows from the mask in global memory. first_row and first_column: of the warp's
/// scores, multiples of 16 and 64.
template <int kColumns>
__device__ __forceinline__ void read_words(FragmentWords<1, kColumns>& out, const MaskView& mask, int list,
                                           int first_row, int first_column) {
  const int lane = lane_index();
#pragma unroll
  for (int word = 0; word < kColumns / 64; ++word) {
    const int column = first_column + 64 * word;
    if (mask.intervals[0] != nullptr) {
      // Each lane finds the rows of one column in 32; the lanes then exchange them.
      const int g = lane / 4, own = column + g / 2 * 8 + lane % 4 * 2 + g % 2;
      std::uint32_t rows = 0;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        std::int32_t ends[4];
        load_intervals(mask, list, own + 32 * group, ends);
        rows |= masked_rows<16>(ends, first_row) << 16 * group;
      }
      out.words[word] = transpose_bytes(rows);
    } else {
      const std::uint32_t cell = find_cell(mask.cells, list, first_row / kCellSize, column / kCellSize);
      const std::uint32_t* const from = row_words(mask.cells, cell) + first_row % kCellSize + lane / 4;
      const unsigned byte = lane % 4, bytes = byte | (byte + 4) << 4;
      constexpr unsigned kHalves = 0x5410;
      out.words[word] = __byte_perm(__byte_perm(__ldg(from), __ldg(from + 8), bytes),
                                    __byte_perm(__ldg(from + kCellSize), __ldg(from + kCellSize + 8), bytes), kHalves);
    }
  }
}

}  // namespace flashmask::cuda::sm90
