#include "flashmask/explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "mask/check.h"

namespace flashmask {
namespace {

constexpr std::size_t kEmptyRowsListed = 8;

std::int64_t length(Interval range) { return range.end - range.begin; }

std::int64_t count_visible(const IntervalMask& mask) {
  const MaskShape& shape = mask.shape();
  const std::int64_t columns = shape.batch * shape.heads * shape.columns;
  std::int64_t visible = columns * shape.rows;
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto index = static_cast<std::size_t>(i);
    visible -= length(mask.first(index)) + length(mask.second(index));
  }
  return visible;
}

/// Rows of one mask head that every column masks.
std::vector<std::int64_t> empty_rows(const IntervalMask& mask, std::int64_t batch, std::int64_t head) {
  const MaskShape& shape = mask.shape();
  std::vector<std::int64_t> change(static_cast<std::size_t>(shape.rows) + 1);
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    const std::size_t index = mask.index(batch, head, column);
    for (const Interval range : {mask.first(index), mask.second(index)}) {
      ++change[static_cast<std::size_t>(range.begin)];
      --change[static_cast<std::size_t>(range.end)];
    }
  }
  std::vector<std::int64_t> rows;
  std::int64_t masked = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    masked += change[static_cast<std::size_t>(row)];
    if (masked == shape.columns) rows.push_back(row);
  }
  return rows;
}

void count_empty_rows(const IntervalMask& mask, Explanation& result) {
  for (std::int64_t batch = 0; batch < mask.shape().batch; ++batch) {
    for (std::int64_t head = 0; head < mask.shape().heads; ++head) {
      std::vector<std::int64_t> rows = empty_rows(mask, batch, head);
      result.empty_rows += static_cast<std::int64_t>(rows.size());
      if (batch != 0 || head != 0) continue;
      rows.resize(std::min(rows.size(), kEmptyRowsListed));
      result.first_empty_rows = std::move(rows);
    }
  }
}

/// Scores of the tiles a kernel computes; ragged tiles count what they have.
std::int64_t active_scores(const TileSchedule& schedule) {
  const MaskShape& shape = schedule.mask_shape();
  const TileShape tile = schedule.tile();
  std::int64_t scores = 0;
  for (std::int64_t list = 0; list < shape.batch * shape.heads * schedule.row_tiles(); ++list) {
    const std::int64_t first_row = list % schedule.row_tiles() * tile.rows;
    const std::int64_t rows = std::min<std::int64_t>(tile.rows, shape.rows - first_row);
    for (const Run& run : schedule.rows().list(list)) {
      const std::int64_t begin = std::int64_t{run.begin} * tile.columns;
      scores += rows * (std::min(std::int64_t{run.end} * tile.columns, shape.columns) - begin);
    }
  }
  return scores;
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

std::string tiles_line(const TileCounts& tiles) {
  return grouped(tiles.skip) + " skip, " + grouped(tiles.partial) + " partial, " + grouped(tiles.full) + " full";
}

std::string empty_rows_line(const Explanation& e) {
  std::string line = grouped(e.empty_rows);
  for (std::size_t i = 0; i < e.first_empty_rows.size(); ++i) {
    line += (i == 0 ? ": " : ", ") + grouped(e.first_empty_rows[i]);
  }
  const bool more = e.empty_rows > static_cast<std::int64_t>(e.first_empty_rows.size());
  return more && !e.first_empty_rows.empty() ? line + ", …" : line;
}

}  // namespace

Explanation explain(const Mask& mask, TileShape tile) {
  const LoweredMask lowered = lower(mask);
  const TileSchedule tiles = schedule(lowered, tile);
  const MaskShape& shape = mask.shape();
  Explanation result;
  result.shape = shape;
  result.description = mask.description();
  result.form = lowered.form();
  result.why = lowered.why();
  result.tile = tile;
  result.visible_pairs = count_visible(lowered.intervals());
  result.dense_bytes = static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns);
  result.density = ratio(static_cast<double>(result.visible_pairs), static_cast<double>(result.dense_bytes));
  result.tiles = tiles.counts();
  result.waste = ratio(static_cast<double>(active_scores(tiles)), static_cast<double>(result.visible_pairs));
  count_empty_rows(lowered.intervals(), result);
  result.mask_bytes = lowered.memory_bytes();
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
      {"tiles " + tile, tiles_line(e.tiles)},
      {"waste", with_digits(e.waste, 2) + " scores computed for each visible pair"},
      {"empty rows", empty_rows_line(e)},
      {"mask memory", human_bytes(e.mask_bytes)},
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
