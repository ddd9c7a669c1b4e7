// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/plan/map_squares.h"
#include "cuda/plan/tile_map.h"
#include "flashmask/schedule.h"

namespace flashmask::check {

/// The words of cuda/plan/tile_map.h from the host's run lists.
inline std::vector<std::uint32_t> words_of(const RunLists& lists, std::int64_t count, int words) {
  std::vector<std::uint32_t> map(static_cast<std::size_t>(count) * 2 * static_cast<std::size_t>(words), 0);
  for (std::int64_t list = 0; list < count; ++list)
    for (const Run& run : lists.list(list))
      for (int tile = run.begin; tile < run.end; ++tile) {
        const std::int64_t kind = run.kind == TileKind::full ? 1 : 0;
        map[static_cast<std::size_t>((list * 2 + kind) * words + tile / 32)] |= 1U << (tile % 32);
      }
  return map;
}

inline std::vector<std::uint32_t> row_words_of(const TileSchedule& schedule) {
  const cuda::TileGrid tiles(schedule.mask_shape(), schedule.tile());
  return words_of(schedule.rows(), std::int64_t{tiles.lists} * tiles.rows, tiles.column_words());
}

inline std::vector<std::uint32_t> column_words_of(const TileSchedule& schedule) {
  const cuda::TileGrid tiles(schedule.mask_shape(), schedule.tile());
  return words_of(schedule.columns(), std::int64_t{tiles.lists} * tiles.columns, tiles.row_words());
}

/// The words of a flat map from those of one in squares (cuda/plan/map_squares.h).
inline std::vector<std::uint32_t> flat_words(const std::vector<std::uint32_t>& numbers,
                                             const std::vector<std::uint32_t>& words, const cuda::TileGrid& tiles,
                                             MapSide side) {
  const bool by_rows = side == MapSide::rows;
  const int lines = by_rows ? tiles.rows : tiles.columns, strips = (lines + 31) / 32,
            line_words = by_rows ? tiles.column_words() : tiles.row_words();
  std::vector<std::uint32_t> map;
  for (int list = 0; list < tiles.lists; ++list)
    for (int line = 0; line < lines; ++line)
      for (const std::uint32_t kind : {0U, 1U})
        for (int word = 0; word < line_words; ++word) {
          const auto at = (std::size_t{1} * list * strips + line / 32) * line_words + word;
          const std::uint32_t square = numbers.at(at);
          map.push_back(square == cuda::MapSquares::kSkipped
                            ? 0
                            : words.at(cuda::MapSquares::place(square, static_cast<std::uint32_t>(line), kind)));
        }
  return map;
}

}  // namespace flashmask::check
