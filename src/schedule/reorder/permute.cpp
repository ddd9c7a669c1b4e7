// SPDX-License-Identifier: Apache-2.0
#include "schedule/reorder/permute.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checks.h"
#include "mask/cell_row_builder.h"
#include "mask/to_bits.h"
#include "schedule/reorder/row_words.h"

namespace flashmask {
namespace {

constexpr std::uint32_t kNowhere = ~0U;

/// One side of permute(): the order it was given, [batch, length].
struct Side {
  const char* name;
  std::span<const std::int64_t> order;
  std::int64_t batch, length;

  [[noreturn]] void refuse_index(std::size_t i, const std::string& what) const {
    refuse("permute: " + std::string(name) + "[" + std::to_string(i) + "] is " + grouped(order[i]) + what);
  }

  /// Returns where each index went, [batch, length]: to[order[i]] = i. Throws unless each order is a permutation.
  std::vector<std::uint32_t> inverted() const {
    if (order.size() != static_cast<std::size_t>(batch * length)) {
      refuse("permute: " + std::string(name) + " has " + grouped(std::ssize(order)) + " indices; give " +
             grouped(batch * length) + ", a permutation of " + grouped(length) + " for each batch entry of the mask");
    }
    std::vector<std::uint32_t> to(order.size(), kNowhere);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i] < 0 || order[i] >= length) refuse_index(i, "; give indices from 0 to below " + grouped(length));
      const std::size_t position = i % static_cast<std::size_t>(length);
      std::uint32_t& target = to[i - position + static_cast<std::size_t>(order[i])];
      if (target != kNowhere) {
        refuse_index(i, ", as " + std::string(name) + "[" + std::to_string(i - position + target) +
                            "] is; give every index once");
      }
      target = static_cast<std::uint32_t>(position);
    }
    return to;
  }
};

/// Calls show(column) for every column that one row sees.
template <class Show>
void for_each_visible(const BitMask& mask, const Graph* visible, std::int64_t batch, std::int64_t head,
                      std::int64_t row, const Show& show) {
  if (visible == nullptr) {
    for_each_word(mask, batch, head, row,
                  [&](std::int64_t cell, std::uint64_t word) { for_each_column(cell, word, show); });
  } else {
    for (const std::uint32_t column : visible->neighbours_of(row)) show(column);
  }
}

}  // namespace

Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
             const std::vector<std::shared_ptr<const Graph>>& visible, Executor& executor) {
  const MaskShape& shape = mask.shape();
  Side{"rows", rows, shape.batch, shape.rows}.inverted();
  const std::vector<std::uint32_t> to = Side{"columns", columns, shape.batch, shape.columns}.inverted();
  const std::shared_ptr<const BitMask> bits = to_bits(mask.lowered(), executor);
  BitMask permuted = build_bits(shape, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<CellRowBuilder>(shape.columns)](std::int64_t batch, std::int64_t head,
                                                                        std::int64_t cell_row, CellRows& out) {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t count = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      const std::uint32_t* const column_to = to.data() + batch * shape.columns;
      const std::int64_t* const row_from = rows.data() + batch * shape.rows + row0;
      const Graph* const known = visible.empty() ? nullptr : visible[static_cast<std::size_t>(batch)].get();
      for (std::int64_t r = 0; r < count; ++r) {
        for_each_visible(*bits, known, batch, head, row_from[r],
                         [&](std::int64_t column) { cells->show(r, column_to[column]); });
      }
      cells->drain(count, out);
    };
  });
  return {std::move(permuted), "permute(" + mask.description() + ")"};
}

Mask permute(const Mask& mask, std::span<const std::int64_t> rows, std::span<const std::int64_t> columns,
             Executor& executor) {
  return permute(mask, rows, columns, {}, executor);
}

}  // namespace flashmask
