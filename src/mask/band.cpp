#include "mask/band.h"

#include <algorithm>
#include <memory>

#include "mask/cell_words.h"

namespace flashmask {

Band::Band(std::int64_t columns)
    : columns_(columns),
      words_(static_cast<std::size_t>((columns + kCellSize - 1) / kCellSize * kCellSize)),
      touched_((columns + kCellSize - 1) / kCellSize) {}

void Band::show(std::int64_t row, std::int64_t begin, std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0);
  end = std::min(end, columns_);
  if (begin >= end) return;
  for (std::int64_t cell = begin / kCellSize; cell * kCellSize < end; ++cell) {
    words_[static_cast<std::size_t>(cell * kCellSize + row)] |=
        range_bits(begin - cell * kCellSize, end - cell * kCellSize);
    touched_.insert(static_cast<std::uint32_t>(cell));
  }
}

void Band::drain(std::int64_t rows, CellRows& out) {
  touched_.drain([&](std::size_t cell) {
    std::uint64_t* words = words_.data() + cell * kCellSize;
    const auto column = static_cast<std::int32_t>(cell);
    out.add(column, words, rows, columns_ - std::int64_t{column} * kCellSize);
    std::fill_n(words, kCellSize, 0);
  });
}

BitMask from_visible_columns(const MaskShape& shape, const VisibleColumns& visible_columns, Executor& executor) {
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&, band = std::make_shared<Band>(shape.columns), ranges = std::vector<masks::Span>()](
               std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) mutable {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      for (std::int64_t r = 0; r < rows; ++r) {
        visible_columns(batch, head, row0 + r, ranges);
        for (const masks::Span& range : ranges) band->show(r, range.begin, range.end);
      }
      band->drain(rows, out);
    };
  });
}

}  // namespace flashmask
