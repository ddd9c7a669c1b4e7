// SPDX-License-Identifier: Apache-2.0
#include "mask/tile_counter.h"

namespace flashmask {
namespace {

/// Appends a run to the list that begins at runs[first].
void append(std::vector<Run>& runs, std::size_t first, const Run& run) {
  if (run.begin == run.end || run.kind == TileKind::skip) return;
  const bool extends = runs.size() > first && runs.back().end == run.begin && runs.back().kind == run.kind;
  if (extends) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

}  // namespace

TileCounter::TileCounter(std::int64_t rows, std::int32_t tile_rows)
    : rows_(static_cast<std::uint32_t>(rows)),
      tile_rows_(static_cast<std::uint32_t>(tile_rows)),
      tiles_(rows_ == 0 ? 0 : (rows_ - 1) / tile_rows_ + 1),
      changes_(tiles_ + 1),
      changed_(tiles_ + 1) {}

void TileCounter::drain(std::int32_t columns, std::vector<Run>& runs) {
  const std::size_t first = runs.size();
  Change sum;
  std::int32_t begin = 0;
  changed_.drain([&](std::size_t tile) {
    append(runs, first, {begin, static_cast<std::int32_t>(tile), kind_of(sum, columns)});
    begin = static_cast<std::int32_t>(tile);
    sum.covered += changes_[tile].covered;
    sum.touched += changes_[tile].touched;
    changes_[tile] = {};
  });
  append(runs, first, {begin, static_cast<std::int32_t>(tiles_), kind_of(sum, columns)});
}

TileKind TileCounter::kind_of(const Change& sum, std::int32_t columns) {
  if (sum.covered == columns) return TileKind::skip;
  return sum.touched == 0 ? TileKind::full : TileKind::partial;
}

// Neighbouring columns mostly begin or end in the same tile, so they are added together.
void TileCounter::add(std::span<const std::int32_t> rows, std::int32_t Change::*at_floor,
                      std::int32_t Change::*at_ceiling, std::int32_t sign) {
  for (auto row = rows.begin(); row != rows.end();) {
    const std::uint32_t tile = grid_row(*row) / tile_rows_;
    const std::uint32_t tile_begin = tile * tile_rows_;
    std::int32_t inside = 0;
    std::int32_t on_edge = 0;
    for (; row != rows.end() && grid_row(*row) - tile_begin < tile_rows_; ++row) {
      ++inside;
      on_edge += grid_row(*row) == tile_begin;
    }
    change(tile, at_floor, sign * inside);
    change(tile, at_ceiling, sign * on_edge);
    change(tile + 1, at_ceiling, sign * (inside - on_edge));
  }
}

void TileCounter::change(std::uint32_t tile, std::int32_t Change::*sum, std::int32_t by) {
  if (by == 0) return;
  changes_[tile].*sum += by;
  changed_.insert(tile);
}

}  // namespace flashmask
