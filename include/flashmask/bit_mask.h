// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask_shape.h"
#include "flashmask/tile.h"

namespace flashmask {

/// The exact lowered form of any mask at all (Binary Block Masking, section 3): cells of 64 × 64 scores. Skipped cells
/// are absent, full cells are runs, and a partial cell takes one bit per score: 64 words, one per row, bit c for its
/// column c, 0 past the mask's end. At most rows · columns / 8 bytes, when every cell is partial.
class FLASHMASK_API BitMask {
 public:
  static constexpr std::int32_t kCell = 64;

  /// `cells` holds the runs of every row of cells in (batch, head, row of cells) order; `words` the 64 words of every
  /// partial cell in the order of the runs. Throws Status::invalid_argument where they contradict each other.
  BitMask(const MaskShape& shape, RunLists cells, std::vector<std::uint64_t> words);

  const MaskShape& shape() const { return shape_; }
  std::int64_t cell_rows() const { return (shape_.rows + kCell - 1) / kCell; }
  std::int64_t cell_columns() const { return (shape_.columns + kCell - 1) / kCell; }
  std::int64_t partial_cells() const { return static_cast<std::int64_t>(words_.size()) / kCell; }

  /// The run lists, one per row of cells.
  const RunLists& cells() const { return cells_; }
  /// Index in cells() of a row of cells. Like words() and visible() it is called in loops and checks nothing:
  /// undefined outside the mask.
  std::int64_t list(std::int64_t batch, std::int64_t head, std::int64_t cell_row) const {
    return (batch * shape_.heads + head) * cell_rows() + cell_row;
  }

  /// The 64 words of the first cell of a partial run; the words of its next cells follow. `run` counts through all
  /// lists.
  const std::uint64_t* words(std::int64_t run) const {
    return words_.data() + first_cells_[static_cast<std::size_t>(run)] * kCell;
  }
  /// The arrays that kernels read: [runs], how many partial cells come before each run, and [partial cells, 64].
  const std::int64_t* first_cells() const { return first_cells_.data(); }
  const std::uint64_t* words() const { return words_.data(); }

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

  std::size_t memory_bytes() const;

  friend bool operator==(const BitMask&, const BitMask&) = default;

 private:
  MaskShape shape_;
  RunLists cells_;
  std::vector<std::int64_t> first_cells_;
  std::vector<std::uint64_t> words_;
};

}  // namespace flashmask
