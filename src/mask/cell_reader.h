// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/bit_mask.h"
#include "mask/cell_words.h"

namespace flashmask {

/// Returns the index of a batch entry or head in a mask that has `size` of them; a size of 1 is broadcast.
inline std::int64_t broadcast_index(std::int64_t index, std::int64_t size) { return size == 1 ? 0 : index; }

/// Neighbouring cells [begin, end) of one kind.
struct CellRun {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  TileKind kind = TileKind::skip;
  const std::uint64_t* words = nullptr;  ///< words of the first cell, if partial

  /// Returns the words of one cell of a partial run.
  const std::uint64_t* words_of(std::int32_t cell) const { return words + std::int64_t{cell - begin} * kCellSize; }
};

/// Reads one row of cells of a BitMask from left to right. Batch and heads of 1 are broadcast.
class CellReader {
 public:
  CellReader(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t cell_row) : mask_(mask) {
    const MaskShape& shape = mask.shape();
    const std::int64_t list =
        mask.list(broadcast_index(batch, shape.batch), broadcast_index(head, shape.heads), cell_row);
    next_ = mask.cells().begin(list);
    end_ = mask.cells().end(list);
  }

  /// Returns the run of cells from cell `from` to its right end; `from` may not decrease from call to call.
  CellRun at(std::int32_t from) {
    while (next_ < end_ && mask_.cells().run(next_).end <= from) ++next_;
    const auto last = static_cast<std::int32_t>(mask_.cell_columns());
    if (next_ == end_) return {from, last, TileKind::skip, nullptr};
    const Run& run = mask_.cells().run(next_);
    if (run.begin > from) return {from, run.begin, TileKind::skip, nullptr};
    const bool partial = run.kind == TileKind::partial;
    return {from, run.end, run.kind,
            partial ? mask_.words(next_) + std::int64_t{from - run.begin} * kCellSize : nullptr};
  }

 private:
  const BitMask& mask_;
  std::int64_t next_ = 0, end_ = 0;
};

/// Calls body(CellRun) for one row of cells, from left to right.
template <class Body>
void for_each_cell_run(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t cell_row,
                       const Body& body) {
  CellReader reader(mask, batch, head, cell_row);
  for (std::int32_t cell = 0; cell < mask.cell_columns();) {
    const CellRun run = reader.at(cell);
    body(run);
    cell = run.end;
  }
}

}  // namespace flashmask
