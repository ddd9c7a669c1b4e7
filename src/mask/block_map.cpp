// SPDX-License-Identifier: Apache-2.0
#include "flashmask/block_map.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/checks.h"
#include "mask/blocks.h"
#include "mask/cell_reader.h"
#include "mask/cell_rows.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

/// Returns a bit for each of the 64 columns from `first`: whether it lies in a kept block. The mask ends at `end`.
std::uint64_t kept_bits(std::int64_t first, std::int64_t end, std::int64_t block, const std::uint8_t* keep) {
  std::uint64_t word = 0;
  for (std::int64_t i = first; i < std::min(end, first + kCellSize);) {
    const std::int64_t next = std::min((i / block + 1) * block, end);
    if (keep[i / block] != 0) word |= range_bits(i - first, next - first);
    i = next;
  }
  return word;
}

/// Writes the words of a cell, masked outside the kept blocks. If `words` is null, the cell is full.
void kept_words(const BlockMap& map, std::int64_t batch, std::int64_t head, std::int64_t row0, std::int64_t column0,
                const std::uint64_t* words, std::uint64_t* out) {
  const MaskShape& shape = map.shape();
  std::fill_n(out, kCellSize, 0);
  for (std::int64_t row = row0; row < std::min(row0 + kCellSize, shape.rows);) {
    const std::uint8_t* keep = map.row(batch, head, row / map.block());
    const std::uint64_t kept = kept_bits(column0, shape.columns, map.block(), keep);
    const std::int64_t end = std::min({(row / map.block() + 1) * map.block(), row0 + kCellSize, shape.rows});
    for (; row < end; ++row) out[row - row0] = (words == nullptr ? ~0ULL : words[row - row0]) & kept;
  }
}

/// Copies the cells of a run that are kept; blocks consist of whole cells.
void keep_whole_cells(const CellRun& run, const std::uint8_t* keep, std::int64_t block, CellRows& out) {
  for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
    if (keep[std::int64_t{cell} * kCellSize / block] != 0) out.copy(run, cell, cell + 1);
  }
}

/// Masks the cells of a run one by one, for blocks of any size.
void keep_parts_of_cells(const CellRun& run, const BlockMap& map, std::int64_t batch, std::int64_t head,
                         std::int64_t row0, CellRows& out) {
  const MaskShape& shape = map.shape();
  std::array<std::uint64_t, kCellSize> words;
  for (std::int32_t cell = run.begin; cell < run.end; ++cell) {
    const std::int64_t column0 = std::int64_t{cell} * kCellSize;
    const std::uint64_t* own = run.kind == TileKind::partial ? run.words_of(cell) : nullptr;
    kept_words(map, batch, head, row0, column0, own, words.data());
    out.add(cell, words.data(), shape.rows - row0, shape.columns - column0);
  }
}

MaskShape common_shape(const MaskShape& mask, const MaskShape& map) {
  const auto fits = [](std::int64_t a, std::int64_t b) { return a == b || a == 1 || b == 1; };
  if (mask.rows != map.rows || mask.columns != map.columns || !fits(mask.batch, map.batch) ||
      !fits(mask.heads, map.heads)) {
    const auto text = [](const MaskShape& s) {
      return grouped(s.batch) + " x " + grouped(s.heads) + " x " + grouped(s.rows) + " x " + grouped(s.columns);
    };
    refuse("Mask & BlockMap: the mask is " + text(mask) + " and the map is for " + text(map) +
           " (batch x heads x rows x columns); give the same rows and columns, and equal batch and heads or 1");
  }
  return {std::max(mask.batch, map.batch), std::max(mask.heads, map.heads), mask.rows, mask.columns};
}

/// Whether the map has as many batch entries and heads as the mask, so that it can be kept beside intervals.
bool same_heads(const MaskShape& map, const MaskShape& mask) {
  return map.batch == mask.batch && map.heads == mask.heads;
}

}  // namespace

BlockMap::BlockMap(const MaskShape& shape, std::int64_t block, std::span<const std::uint8_t> keep)
    : shape_(shape), block_(block), keep_(keep.begin(), keep.end()) {
  check_shape("BlockMap", shape);
  if (block < 16 || block % 16 != 0) {
    refuse("BlockMap: block is " + grouped(block) + "; give a multiple of 16, such as 64, 128 or 256");
  }
  const std::size_t expected = element_count("BlockMap", {shape.batch, shape.heads, block_rows(), block_columns()});
  if (keep.size() != expected) {
    refuse("BlockMap: keep has " + counted(keep.size(), "value") +
           " but batch x heads x row blocks x column blocks is " + grouped(static_cast<std::int64_t>(expected)));
  }
  const auto wrong = std::find_if(keep.begin(), keep.end(), [](std::uint8_t value) { return value > 1; });
  if (wrong != keep.end()) {
    refuse("BlockMap: keep[" + std::to_string(wrong - keep.begin()) + "] is " + grouped(*wrong) +
           "; give 1 (keep) or 0 (leave out)");
  }
}

double BlockMap::density() const {
  const auto kept = std::count(keep_.begin(), keep_.end(), std::uint8_t{1});
  return keep_.empty() ? 0 : static_cast<double>(kept) / static_cast<double>(keep_.size());
}

BitMask keep_blocks(const BitMask& mask, const BlockMap& map, Executor& executor) {
  const MaskShape shape = common_shape(mask.shape(), map.shape());
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      const std::int64_t map_batch = broadcast_index(batch, map.shape().batch);
      const std::int64_t map_head = broadcast_index(head, map.shape().heads);
      const std::int64_t row0 = cell_row * kCellSize;
      for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) {
        if (run.kind == TileKind::skip) return;
        if (map.block() % kCellSize == 0) {
          keep_whole_cells(run, map.row(map_batch, map_head, row0 / map.block()), map.block(), out);
        } else {
          keep_parts_of_cells(run, map, map_batch, map_head, row0, out);
        }
      });
    };
  });
}

Mask operator&(const Mask& mask, const BlockMap& map) {
  const MaskShape shape = common_shape(mask.shape(), map.shape());
  const std::string description = "(" + mask.description() + " & block_map(" + grouped(map.block()) + "))";
  const LoweredMask& lowered = mask.lowered();
  const bool beside = is_plain_intervals(lowered) && map.block() % kWholeTiles == 0 && shape == mask.shape() &&
                      same_heads(map.shape(), shape);
  if (beside) {
    LoweredMask both(lowered.shared_intervals(), lowered.why() + ", and the block map is kept beside them",
                     std::make_shared<const BlockMap>(map));
    return {std::move(both), description};
  }
  Executor& executor = default_executor();
  return {keep_blocks(*to_bits(lowered, executor), map, executor), description};
}

Mask from_block_map(const BlockMap& map) {
  const MaskShape& shape = map.shape();
  Mask blocks = Mask(IntervalMask(shape), "full") & map;
  return {blocks.lowered(), "block_map(" + grouped(map.block()) + ")", blocks.misfit()};
}

}  // namespace flashmask
