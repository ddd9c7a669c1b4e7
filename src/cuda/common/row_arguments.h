// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/mask_view.h"
#include "cuda/scores/score_arguments.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"

/// Arguments of kernels that walk row tiles, besides their own tensors.
namespace flashmask::cuda {

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

struct RowArguments {
  int batch, query_length, key_length, query_heads;
  int head_ratio;  // query heads per key head
  int items;       // row tiles of all heads
  ScoreArguments score;
  int section_heads;  // heads whose keys and values stay in the L2 cache together
  TileMapView map;
  MaskView mask;
  int* next_item;     // 0 at the start of a launch
  TileChoice choice;  // empty where there is one launch
  DeviceUnits query_units, key_units;
};

/// Returns how many query heads' keys and values fit in `section_bytes`, at least those of one key head: whole groups,
/// so that heads share what they load.
int heads_in_section(const Problem& problem, std::int64_t section_bytes);

/// Returns how many key heads' queries, sums for the gradients of queries and gradients of the output fit in
/// `section_bytes`, at least one.
int key_heads_in_section(const Problem& problem, std::int64_t section_bytes);

/// Return where the tokens of queries, and of keys, lie.
DeviceUnits query_units(const Plan& plan);
DeviceUnits key_units(const Plan& plan);

/// Returns the view of one of the plan's maps.
TileMapView map_view(const DeviceMap& map, const Plan& plan);

/// `map`: the kernel's map by rows, in the plan.
RowArguments row_arguments(const Plan& plan, const DeviceMap& map, const ScoreArguments& score, int* next_item);

}  // namespace flashmask::cuda
