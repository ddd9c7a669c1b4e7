// SPDX-License-Identifier: Apache-2.0
#include "flashmask/bit_mask.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checks.h"

namespace flashmask {
namespace {

void check_offsets(const std::vector<std::int64_t>& offsets, std::int64_t lists, std::size_t runs) {
  const bool ends = offsets.size() == static_cast<std::size_t>(lists) + 1 && offsets.front() == 0 &&
                    offsets.back() == static_cast<std::int64_t>(runs);
  if (!ends || !std::is_sorted(offsets.begin(), offsets.end())) {
    refuse("BitMask: cells.offsets do not divide " + counted(runs, "run") + " into " + grouped(lists) +
           " lists, one a row of cells; give ascending offsets from 0 to the number of runs");
  }
}

void check_runs(std::span<const Run> runs, std::int64_t columns, std::int64_t list) {
  std::int32_t end = 0;
  for (const Run& run : runs) {
    if (run.begin < end || run.end <= run.begin || run.end > columns || run.kind == TileKind::skip) {
      refuse("BitMask: list " + grouped(list) + " has a run of cells from " + grouped(run.begin) + " to " +
             grouped(run.end) + "; give ascending runs of full or partial cells within " + grouped(columns));
    }
    end = run.end;
  }
}

}  // namespace

BitMask::BitMask(const MaskShape& shape, RunLists cells, std::vector<std::uint64_t> words)
    : shape_(shape), cells_(std::move(cells)), words_(std::move(words)) {
  check_shape("BitMask", shape_);
  const std::int64_t lists = shape_.batch * shape_.heads * cell_rows();
  check_offsets(cells_.offsets, lists, cells_.runs.size());
  for (std::int64_t i = 0; i < lists; ++i) check_runs(cells_.list(i), cell_columns(), i);
  first_cells_.reserve(cells_.runs.size());
  std::int64_t partial = 0;
  for (const Run& run : cells_.runs) {
    first_cells_.push_back(partial);
    if (run.kind == TileKind::partial) partial += run.end - run.begin;
  }
  if (words_.size() != static_cast<std::size_t>(partial * kCell)) {
    refuse("BitMask: words holds " + counted(words_.size(), "word") + " but the runs have " + grouped(partial) +
           " partial cells; give 64 words a cell");
  }
}

bool BitMask::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  const std::span<const Run> runs = cells_.list(list(batch, head, row / kCell));
  const std::int64_t cell = column / kCell;
  const auto found =
      std::upper_bound(runs.begin(), runs.end(), cell, [](std::int64_t c, const Run& run) { return c < run.end; });
  if (found == runs.end() || found->begin > cell) return false;
  if (found->kind == TileKind::full) return true;
  const std::uint64_t* cell_words = words(&*found - cells_.runs.data()) + (cell - found->begin) * kCell;
  return (cell_words[row % kCell] >> (column % kCell) & 1) != 0;
}

std::size_t BitMask::memory_bytes() const {
  return cells_.offsets.size() * sizeof(std::int64_t) + cells_.runs.size() * (sizeof(Run) + sizeof(std::int64_t)) +
         words_.size() * sizeof(std::uint64_t);
}

}  // namespace flashmask
