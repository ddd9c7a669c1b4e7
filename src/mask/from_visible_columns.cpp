// SPDX-License-Identifier: Apache-2.0
#include "mask/from_visible_columns.h"

#include <algorithm>
#include <memory>

#include "mask/cell_row_builder.h"

namespace flashmask {

BitMask from_visible_columns(const MaskShape& shape, const VisibleColumns& visible_columns, Executor& executor) {
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<CellRowBuilder>(shape.columns), ranges = std::vector<masks::Span>()](
               std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) mutable {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      for (std::int64_t r = 0; r < rows; ++r) {
        visible_columns(batch, head, row0 + r, ranges);
        for (const masks::Span& range : ranges) cells->show(r, range.begin, range.end);
      }
      cells->drain(rows, out);
    };
  });
}

}  // namespace flashmask
