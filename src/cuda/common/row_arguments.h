// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/mask_view.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"

/// What kernels that walk row tiles are told, beside their own tensors.
namespace flashmask::cuda {

/// A plan's map (cuda/plan/tile_map.h) and how heads find their list in it: for each outer tile, which a block takes,
/// the inner ones that it visits. Outer tiles are row tiles in a map by rows and key tiles in one by columns.
struct TileMapView {
  const std::uint32_t* tiles;
  const std::uint32_t* squares;   // of a map in squares, where `tiles` are theirs; null: it is flat
  const std::uint32_t* occupied;  // where rows of squares are visited (plan/map_squares.h); null: look everywhere
  int occupied_shift;
  int outer_tiles, inner_tiles, words;
  int lines;         // outer tiles of a list, those included that fill up its last squares
  int batch, heads;  // of the mask
  int head_ratio;    // query heads that share a mask head
  bool ragged;       // by rows: the last key tile ends beyond the last key and always needs bits
  bool visit_all;    // skipped tiles as well, all of them as if they were partial

  /// Over all lists.
  __host__ __device__ int all_outer_tiles() const { return batch * heads * outer_tiles; }
};

/// A call over tiles of two shapes launches both, since only the device knows how many tiles each visits. Every block
/// reads the counts, and those of one launch return at once. The small tiles do the work where
/// visited_small < limit · visited + allowance.
struct TileChoice {
  const std::uint32_t *visited, *visited_small;  // of DeviceMap; visited_small is null where there is one launch
  float limit, allowance;                        // `limit` is 0 where `visited` is null
  bool small;                                    // whether this launch is that of the small tiles

  __device__ bool has_the_work() const {
    if (visited_small == nullptr) return true;
    const float of_others = visited == nullptr ? 0 : static_cast<float>(*visited);
    return small == (static_cast<float>(*visited_small) < limit * of_others + allowance);
  }
};

struct RowArguments {
  int batch, query_length, key_length, query_heads;
  int head_ratio;     // query heads that share a key head
  int items;          // row tiles of all heads
  float scale_log2;   // softmax scale · log2(e)
  int section_heads;  // heads whose keys and values stay in the L2 cache together
  TileMapView map;
  MaskView mask;
  int* next_item;     // 0 at the start of a launch
  TileChoice choice;  // empty where there is one launch
};

/// How many query heads have keys and values of so many bytes: whole groups, so that they share what they load.
int heads_in_section(const Problem& problem, std::int64_t section_bytes);

/// A map of the plan's.
TileMapView map_view(const DeviceMap& map, const Plan& plan);

/// `map`: that of the kernel, in the plan, by rows.
RowArguments row_arguments(const Plan& plan, const DeviceMap& map, int* next_item);

}  // namespace flashmask::cuda
