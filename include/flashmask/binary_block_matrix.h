// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// The tiles of one mask head under the names of Binary Block Masking (section 3.2), with BLOCKSIZE_I × BLOCKSIZE_J the
/// schedule's tile. Views for readers and tests: kernels walk the runs of the schedule instead.
struct BinaryBlockMatrix {
  std::int64_t rows = 0;     ///< ⌈N / BLOCKSIZE_I⌉
  std::int64_t columns = 0;  ///< ⌈N / BLOCKSIZE_J⌉

  std::vector<std::uint8_t> blocks;  ///< BinBlkMat [rows, columns]: 1 where a block has a visible score

  /// Dense Binary Block Masking, [rows]: how many blocks in a row are filled with ones, counted from the first such
  /// block without a gap, and the position of that first block. A row without one has 0 and 0.
  std::vector<std::int32_t> total_ones, offset;

  std::uint8_t at(std::int64_t row, std::int64_t column) const {
    return blocks[static_cast<std::size_t>(row * columns + column)];
  }
};

/// `row` walks a row of blocks, as the forward does; Direction::backward gives the matrix of the transposed mask, whose
/// rows are columns of tiles. Throws Status::invalid_argument where the batch entry or head is not the mask's.
FLASHMASK_API BinaryBlockMatrix binary_block_matrix(const TileSchedule& schedule, std::int64_t batch = 0,
                                                    std::int64_t head = 0, Direction direction = Direction::forward);

}  // namespace flashmask
