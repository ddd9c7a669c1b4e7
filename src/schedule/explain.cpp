// SPDX-License-Identifier: Apache-2.0
#include "flashmask/explain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <optional>
#include <span>
#include <utility>

#include "base/checks.h"
#include "mask/cell_reader.h"
#include "mask/to_bits.h"
#include "schedule/places.h"

namespace flashmask {
namespace {

constexpr std::size_t kEmptyRowsListed = 8;

/// What explain() reports about the scores.
struct Census {
  std::int64_t visible = 0;
  std::int64_t empty_rows = 0;
  std::vector<std::int64_t> first_empty_rows;

  void note_empty_row(std::int64_t batch, std::int64_t head, std::int64_t row) {
    ++empty_rows;
    if (batch == 0 && head == 0 && first_empty_rows.size() < kEmptyRowsListed) first_empty_rows.push_back(row);
  }
};

std::int64_t length(Interval range) { return range.end - range.begin; }

/// Counts the scores of one head; a row is empty when every column masks it.
void count_head(const IntervalMask& mask, std::int64_t batch, std::int64_t head, Census& census) {
  const MaskShape& shape = mask.shape();
  std::vector<std::int64_t> change(static_cast<std::size_t>(shape.rows) + 1);
  census.visible += shape.rows * shape.columns;
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    const std::size_t index = mask.index(batch, head, column);
    for (const Interval range : {mask.first(index), mask.second(index)}) {
      ++change[static_cast<std::size_t>(range.begin)];
      --change[static_cast<std::size_t>(range.end)];
      census.visible -= length(range);
    }
  }
  std::int64_t masked = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    masked += change[static_cast<std::size_t>(row)];
    if (masked == shape.columns) census.note_empty_row(batch, head, row);
  }
}

void count_head(const BitMask& mask, std::int64_t batch, std::int64_t head, Census& census) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t cell_row = 0; cell_row < mask.cell_rows(); ++cell_row) {
    const std::int64_t row0 = cell_row * kCellSize;
    const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
    std::uint64_t seen = 0;  // bit r: row r of the cells sees something
    for_each_cell_run(mask, batch, head, cell_row, [&](const CellRun& run) {
      if (run.kind == TileKind::full) {
        const std::int64_t end = std::min(std::int64_t{run.end} * kCellSize, shape.columns);
        census.visible += rows * (end - std::int64_t{run.begin} * kCellSize);
        seen = ~0ULL;
      }
      const std::int64_t words = run.kind == TileKind::partial ? (run.end - run.begin) * kCellSize : 0;
      for (std::int64_t i = 0; i < words; ++i) {
        census.visible += std::popcount(run.words[i]);
        if (run.words[i] != 0) seen |= 1ULL << i % kCellSize;
      }
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      if ((seen >> r & 1) == 0) census.note_empty_row(batch, head, row0 + r);
    }
  }
}

template <class Form>
Census census_of(const Form& mask) {
  Census census;
  for (std::int64_t batch = 0; batch < mask.shape().batch; ++batch) {
    for (std::int64_t head = 0; head < mask.shape().heads; ++head) count_head(mask, batch, head, census);
  }
  return census;
}

Census census_of(const LoweredMask& mask) {
  return is_plain_intervals(mask) ? census_of(mask.intervals()) : census_of(*to_bits(mask, default_executor()));
}

/// The grid that tiles lie on: rows and columns, or their places.
struct Grid {
  const LoweredMask& mask;
  const Places* places;  ///< nullptr: places are tokens

  PlacedTokens rows(std::int64_t batch) const {
    return places == nullptr ? PlacedTokens{.tokens = mask.shape().rows} : places->rows.of(batch);
  }
  PlacedTokens columns(std::int64_t batch) const {
    return places == nullptr ? PlacedTokens{.tokens = mask.shape().columns} : places->columns.of(batch);
  }
};

/// What a kernel computes.
struct Computed {
  TileCounts tiles;
  std::int64_t scores = 0;  ///< in active tiles; of tiles that end early, only the scores that exist
};

std::int64_t tiles_with_tokens(const PlacedTokens& tokens, std::int64_t tiles, std::int64_t side) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < tiles; ++i) count += tokens.at(i * side, side).count > 0 ? 1 : 0;
  return count;
}

/// Counts the tiles of one list of rows, of which those without a token do not exist.
void count_row_tile(std::span<const Run> runs, std::int64_t rows, const PlacedTokens& columns, std::int64_t side,
                    Computed& computed) {
  for (const Run& run : runs) {
    for (std::int64_t tile = run.begin; tile < run.end; ++tile) {
      const std::int64_t width = columns.at(tile * side, side).count;
      if (rows == 0 || width == 0) continue;
      ++(run.kind == TileKind::full ? computed.tiles.full : computed.tiles.partial);
      computed.scores += rows * width;
    }
  }
}

Computed computed_of(const TileSchedule& schedule, const Grid& grid) {
  const MaskShape& shape = schedule.mask_shape();
  const TileShape tile = schedule.tile();
  Computed computed;
  std::int64_t all = 0;
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    const PlacedTokens rows = grid.rows(batch), columns = grid.columns(batch);
    all += shape.heads * tiles_with_tokens(rows, schedule.row_tiles(), tile.rows) *
           tiles_with_tokens(columns, schedule.column_tiles(), tile.columns);
    for (std::int64_t head = 0; head < shape.heads; ++head)
      for (std::int64_t i = 0; i < schedule.row_tiles(); ++i)
        count_row_tile(schedule.row_runs(batch, head, i), rows.at(i * tile.rows, tile.rows).count, columns,
                       tile.columns, computed);
  }
  computed.tiles.skip = all - computed.tiles.active();
  return computed;
}

double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

std::string with_digits(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string human_bytes(std::size_t bytes) {
  if (bytes < 1024) return grouped(static_cast<std::int64_t>(bytes)) + " bytes";
  constexpr std::array<const char*, 5> units = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return with_digits(value, 1) + " " + units[unit];
}

std::string shape_line(const MaskShape& shape) {
  return "batch " + grouped(shape.batch) + ", heads " + grouped(shape.heads) + ", " + grouped(shape.rows) + " rows, " +
         grouped(shape.columns) + " columns";
}

std::string pairs_line(const Explanation& e) {
  const std::int64_t pairs = e.shape.batch * e.shape.heads * e.shape.rows * e.shape.columns;
  return grouped(e.visible_pairs) + " of " + grouped(pairs) + " (" + with_digits(100 * e.density, 2) + " %)";
}

std::string tiles_line(const TileCounts& tiles, bool invariant) {
  const std::string counts =
      grouped(tiles.skip) + " skip, " + grouped(tiles.partial) + " partial, " + grouped(tiles.full) + " full";
  return invariant ? counts + ", beginning at every free cut" : counts;
}

std::string empty_rows_line(const Explanation& e) {
  std::string line = grouped(e.empty_rows);
  for (std::size_t i = 0; i < e.first_empty_rows.size(); ++i) {
    line += (i == 0 ? ": " : ", ") + grouped(e.first_empty_rows[i]);
  }
  const bool more = e.empty_rows > static_cast<std::int64_t>(e.first_empty_rows.size());
  return more && !e.first_empty_rows.empty() ? line + ", …" : line;
}

/// Returns a mask's memory; for a mask of bits, also how much its bits take and how much they could take at most.
std::string mask_memory_line(const Explanation& e) {
  const std::string bytes = human_bytes(e.mask_bytes);
  if (e.form == MaskForm::intervals) return bytes;
  constexpr std::size_t kCellBytes = kCellSize * sizeof(std::uint64_t);
  const auto cells = [](std::int64_t scores) { return (scores + kCellSize - 1) / kCellSize; };
  const std::int64_t most = e.shape.batch * e.shape.heads * cells(e.shape.rows) * cells(e.shape.columns);
  return bytes + ": " + human_bytes(static_cast<std::size_t>(e.partial_cells) * kCellBytes) + " of bits in " +
         counted(static_cast<std::size_t>(e.partial_cells), "partial cell") + " of 64 x 64 (at worst " +
         human_bytes(static_cast<std::size_t>(most) * kCellBytes) + "), runs for the rest";
}

}  // namespace

Explanation explain(const Mask& mask, TileShape tile, bool invariant) {
  const LoweredMask& lowered = mask.lowered();
  std::optional<Places> cut;
  if (invariant) cut = places(lowered, unit_of(tile), 1, default_executor());
  const Grid grid{cut ? cut->mask : lowered, cut ? &*cut : nullptr};
  const TileSchedule tiles = schedule(grid.mask, tile);
  const Computed computed = computed_of(tiles, grid);
  const MaskShape& shape = mask.shape();
  Census census = census_of(lowered);
  Explanation result;
  result.shape = shape;
  result.description = mask.description();
  result.form = lowered.form();
  result.why = lowered.why();
  result.tile = tile;
  result.invariant = invariant;
  result.visible_pairs = census.visible;
  result.dense_bytes = static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns);
  result.density = ratio(static_cast<double>(result.visible_pairs), static_cast<double>(result.dense_bytes));
  result.tiles = computed.tiles;
  result.waste = ratio(static_cast<double>(computed.scores), static_cast<double>(result.visible_pairs));
  result.empty_rows = census.empty_rows;
  result.first_empty_rows = std::move(census.first_empty_rows);
  result.mask_bytes = lowered.memory_bytes();
  result.partial_cells = lowered.form() == MaskForm::bits ? lowered.bits().partial_cells() : 0;
  result.schedule_bytes = tiles.memory_bytes();
  return result;
}

std::string to_string(const Explanation& e) {
  const std::string tile = grouped(e.tile.rows) + " x " + grouped(e.tile.columns);
  const auto lines = std::to_array<std::pair<std::string, std::string>>({
      {"mask", e.description},
      {"shape", shape_line(e.shape)},
      {"form", to_string(e.form) + ": " + e.why},
      {"visible pairs", pairs_line(e)},
      {"tiles " + tile, tiles_line(e.tiles, e.invariant)},
      {"waste", with_digits(e.waste, 2) + " scores computed for each visible pair"},
      {"empty rows", empty_rows_line(e)},
      {"mask memory", mask_memory_line(e)},
      {"schedule memory", human_bytes(e.schedule_bytes)},
      {"dense mask memory", human_bytes(e.dense_bytes)},
  });
  std::size_t width = 0;
  for (const auto& [name, value] : lines) width = std::max(width, name.size());
  std::string table;
  for (const auto& [name, value] : lines) {
    table.append(name).append(width + 2 - name.size(), ' ').append(value).append(1, '\n');
  }
  return table;
}

}  // namespace flashmask
