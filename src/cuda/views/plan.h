// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/device_arrays.h"

/// A plan as a launch carries it: plain structs, which host code fills (common/views.h).
namespace flashmask::cuda {

/// A mask of cells, read through mask_reads.cuh.
struct CellsView {
  DeviceBits bits;
  int rows, columns;  // counted in cells
};

struct MaskView {
  int rows, columns;
  const std::int32_t* intervals[4];
  CellsView cells;
};

/// How words of a map in squares are found (common/tile_walk.cuh).
struct MapSquares {
  static constexpr std::uint32_t kTiles = 32, kWords = 2 * kTiles;
  /// The first squares, which the whole map shares: all tiles of each are of one kind. AtEnd: the inner tiles end in
  /// this square. The words of kSkipped are never read.
  enum Shared : std::uint32_t { kSkipped, kPartial, kPartialAtEnd, kFull, kFullAtEnd, kShared };

  /// Returns the place of a word of a square, for an outer tile and a kind of tiles: partial (0) or full (1).
  __host__ __device__ static std::uint32_t place(std::uint32_t square, std::uint32_t outer_tile, std::uint32_t kind) {
    return square * kWords + outer_tile % kTiles * 2 + kind;
  }
};

/// A plan's map (cuda/plan/tile_map.h) and how heads find their list in it. For each outer tile, which a block takes,
/// it says which inner tiles to visit. Outer tiles are row tiles in a map by rows and key tiles in one by columns.
struct TileMapView {
  const std::uint32_t* tiles;
  const std::uint32_t* squares;   // numbers of the squares, whose words `tiles` then has; null: the map is flat
  const std::uint32_t* occupied;  // where rows of squares are visited (plan/map_squares.h); null: possibly everywhere
  int occupied_shift;
  int outer_tiles, inner_tiles, words;
  int lines;         // outer tiles of a list, including those that pad its last squares
  int batch, heads;  // the mask's
  int head_ratio;    // query heads per mask head
  bool ragged;       // by rows: the last key tile ends beyond the last key and always needs bits
  bool visit_all;    // visits skipped tiles as well, and all tiles as if they were partial

  /// Outer tiles of all lists.
  __host__ __device__ int all_outer_tiles() const { return batch * heads * outer_tiles; }
};

/// The choice between tiles of two shapes. Both are launched, since only the device knows how many tiles each visits.
/// Every block reads the counts, and the blocks of one launch return at once. The small tiles do the work where
/// visited_small < limit · visited + allowance.
struct TileChoice {
  const std::uint32_t *visited, *visited_small;  // DeviceMap::visited; visited_small is null where there is one launch
  float limit, allowance;                        // `limit` is 0 where `visited` is null
  bool small;                                    // whether this launch is the one with small tiles

  __device__ bool has_the_work() const {
    if (visited_small == nullptr) return true;
    const float of_others = visited == nullptr ? 0 : static_cast<float>(*visited);
    return small == (static_cast<float>(*visited_small) < limit * of_others + allowance);
  }
};

}  // namespace flashmask::cuda
