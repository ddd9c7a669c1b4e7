// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"

namespace flashmask {

/// Blocks of scores that are kept or left out as a whole (block-sparse FlashAttention, algorithm 5). Used alone or
/// ANDed onto any mask.
class FLASHMASK_API BlockMap {
 public:
  /// keep [batch, heads, ⌈rows / block⌉, ⌈columns / block⌉], 1 = keep, 0 = leave out. `shape` counts scores; `block` is
  /// a multiple of 16. Throws Status::invalid_argument on any other size or value, naming the first.
  BlockMap(const MaskShape& shape, std::int64_t block, std::span<const std::uint8_t> keep);

  const MaskShape& shape() const { return shape_; }
  std::int64_t block() const { return block_; }
  std::int64_t block_rows() const { return (shape_.rows + block_ - 1) / block_; }
  std::int64_t block_columns() const { return (shape_.columns + block_ - 1) / block_; }

  bool keeps(std::int64_t batch, std::int64_t head, std::int64_t block_row, std::int64_t block_column) const {
    return row(batch, head, block_row)[block_column] != 0;
  }
  /// [block_columns], 1 = keep.
  const std::uint8_t* row(std::int64_t batch, std::int64_t head, std::int64_t block_row) const {
    return keep_.data() + ((batch * shape_.heads + head) * block_rows() + block_row) * block_columns();
  }

  /// Share of the blocks that are kept.
  double density() const;
  std::size_t memory_bytes() const { return keep_.size(); }

 private:
  MaskShape shape_;
  std::int64_t block_;
  std::vector<std::uint8_t> keep_;
};

/// Returns the mask that shows exactly the kept blocks.
FLASHMASK_API Mask from_block_map(const BlockMap& map);

/// Returns what the mask shows inside the kept blocks. Batch and heads of 1 are broadcast; rows and columns must agree.
FLASHMASK_API Mask operator&(const Mask& mask, const BlockMap& map);

}  // namespace flashmask
