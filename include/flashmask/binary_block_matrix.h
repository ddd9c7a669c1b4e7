// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// The tiles of one mask head, named as in Binary Block Masking (section 3.2); BLOCKSIZE_I × BLOCKSIZE_J is the
/// schedule's tile. For readers and tests: kernels walk the runs of the schedule instead.
struct BinaryBlockMatrix {
  std::int64_t rows = 0;     ///< ⌈N / BLOCKSIZE_I⌉
  std::int64_t columns = 0;  ///< ⌈N / BLOCKSIZE_J⌉

  std::vector<std::uint8_t> blocks;  ///< BinBlkMat [rows, columns]: 1 where a block has a visible score

  /// Dense Binary Block Masking, [rows]: the length of each row's first unbroken stretch of blocks that are filled with
  /// ones, and the position of the stretch's first block. A row without such a block has 0 and 0.
  std::vector<std::int32_t> total_ones, offset;

  std::uint8_t at(std::int64_t row, std::int64_t column) const {
    return blocks[static_cast<std::size_t>(row * columns + column)];
  }
};

/// Builds the matrix of one mask head. Its rows are rows of tiles, as in the forward; Direction::backward gives the
/// matrix of the transposed mask, whose rows are columns of tiles. Throws Status::invalid_argument where the mask has
/// no such batch entry or head.
FLASHMASK_API BinaryBlockMatrix binary_block_matrix(const TileSchedule& schedule, std::int64_t batch = 0,
                                                    std::int64_t head = 0, Direction direction = Direction::forward);

}  // namespace flashmask
