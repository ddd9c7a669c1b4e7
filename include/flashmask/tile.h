// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/language_standard.h"

namespace flashmask {

/// Size of a tile of scores. Tiles lie on one fixed grid; the last row and column of tiles may be ragged.
struct TileShape {
  std::int32_t rows = 64;
  std::int32_t columns = 64;

  friend bool operator==(const TileShape&, const TileShape&) = default;
};

/// The kind of a tile: skip, no score is visible; full, every score is; partial, any other tile.
enum class TileKind : std::uint8_t { skip, full, partial };

/// Consecutive tiles [begin, end) of one kind; skipped tiles are in no run.
struct Run {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  TileKind kind = TileKind::full;

  friend bool operator==(const Run&, const Run&) = default;
};

/// Run lists of one direction: list i is runs[offsets[i]] … runs[offsets[i + 1]), in ascending order.
struct RunLists {
  std::vector<std::int64_t> offsets;
  std::vector<Run> runs;

  /// Where list i lies among the runs.
  std::int64_t begin(std::int64_t i) const { return offsets[static_cast<std::size_t>(i)]; }
  std::int64_t end(std::int64_t i) const { return offsets[static_cast<std::size_t>(i) + 1]; }
  const Run& run(std::int64_t position) const { return runs[static_cast<std::size_t>(position)]; }

  std::span<const Run> list(std::int64_t i) const {
    return std::span(runs).subspan(static_cast<std::size_t>(begin(i)), static_cast<std::size_t>(end(i) - begin(i)));
  }
  friend bool operator==(const RunLists&, const RunLists&) = default;
};

FLASHMASK_API std::string to_string(TileKind kind);

}  // namespace flashmask
