#pragma once

#include <cstdint>

#include "flashmask/bit_mask.h"
#include "mask/cell_words.h"

namespace flashmask {

/// One row of cells of a BitMask, from left to right.
class CellReader {
 public:
  CellReader(const BitMask& mask, std::int64_t batch, std::int64_t head, std::int64_t cell_row)
      : mask_(mask),
        next_(mask.cells().begin(mask.list(batch, head, cell_row))),
        end_(mask.cells().end(mask.list(batch, head, cell_row))) {}

  /// What lies at cells [begin, end): one kind, as far to the right as it goes. `words` is that of the first, if
  /// partial.
  struct Stretch {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    TileKind kind = TileKind::skip;
    const std::uint64_t* words = nullptr;
  };

  /// `from` never falls.
  Stretch at(std::int32_t from) {
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
  std::int64_t next_, end_;
};

}  // namespace flashmask
