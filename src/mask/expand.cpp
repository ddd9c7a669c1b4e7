// SPDX-License-Identifier: Apache-2.0
#include "base/checks.h"
#include "flashmask/block_map.h"
#include "flashmask/mask.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// One head of dense scores, [rows, columns].
struct Matrix {
  std::uint8_t* scores;
  std::int64_t columns;

  void hide(std::int64_t column, Interval rows) const {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) scores[row * columns + column] = 0;
  }
};

void expand_intervals(const IntervalMask& mask, std::int64_t batch, std::int64_t head, const Matrix& out) {
  std::fill_n(out.scores, mask.shape().rows * mask.shape().columns, std::uint8_t{1});
  for (std::int64_t column = 0; column < mask.shape().columns; ++column) {
    const std::size_t index = mask.index(batch, head, column);
    out.hide(column, mask.first(index));
    out.hide(column, mask.second(index));
  }
}

void expand_cell(const std::uint64_t* words, std::int64_t row0, std::int64_t column0, const MaskShape& shape,
                 const Matrix& out) {
  for (std::int64_t r = 0; r < std::min<std::int64_t>(kCellSize, shape.rows - row0); ++r) {
    for (std::int64_t c = 0; c < std::min<std::int64_t>(kCellSize, shape.columns - column0); ++c) {
      out.scores[(row0 + r) * out.columns + column0 + c] = words[r] >> c & 1;
    }
  }
}

void expand_bits(const BitMask& mask, std::int64_t batch, std::int64_t head, const Matrix& out) {
  const MaskShape& shape = mask.shape();
  const std::array<std::uint64_t, kCellSize> full = [] {
    std::array<std::uint64_t, kCellSize> all;
    all.fill(~0ULL);
    return all;
  }();
  for (std::int64_t cell_row = 0; cell_row < mask.cell_rows(); ++cell_row) {
    const std::int64_t list = mask.list(batch, head, cell_row);
    for (std::int64_t i = mask.cells().begin(list); i < mask.cells().end(list); ++i) {
      const Run& run = mask.cells().run(i);
      for (std::int64_t cell = run.begin; cell < run.end; ++cell) {
        const bool partial = run.kind == TileKind::partial;
        const std::uint64_t* words = partial ? mask.words(i) + (cell - run.begin) * kCellSize : full.data();
        expand_cell(words, cell_row * kCellSize, cell * kCellSize, shape, out);
      }
    }
  }
}

}  // namespace

std::vector<std::uint8_t> expand(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  auto visible =
      zeros<std::uint8_t>("expand", element_count("expand", {shape.batch, shape.heads, shape.rows, shape.columns}));
  const LoweredMask& lowered = mask.lowered();
  const bool intervals = is_plain_intervals(lowered);
  const auto bits = intervals ? nullptr : to_bits(lowered, default_executor());
  Matrix head_scores{visible.data(), shape.columns};
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head, head_scores.scores += shape.rows * shape.columns) {
      if (intervals) {
        expand_intervals(lowered.intervals(), batch, head, head_scores);
      } else {
        expand_bits(*bits, batch, head, head_scores);
      }
    }
  }
  return visible;
}

}  // namespace flashmask
