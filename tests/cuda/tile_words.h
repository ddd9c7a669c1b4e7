#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace flashmask::check
