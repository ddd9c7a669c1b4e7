#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/mask_view.h"
#include "flashmask/attention.h"
#include "plan/device_plan.h"

/// What kernels that walk row tiles are told, beside their own tensors.
namespace flashmask::cuda {

/// A plan's map by rows of tiles (cuda/plan/tile_map.h), and how heads find their list in it. Or that by columns: rows
/// and columns have then changed places.
struct TileMapView {
  const std::uint32_t* tiles;
  int row_tiles, column_tiles, words;
  int batch, heads;  // of the mask
  int head_ratio;    // query heads that share a mask head
  bool ragged;       // the last column tile ends beyond the last column: it always needs bits
  bool visit_all;    // every tile, in the order of the lists, as if partial

  /// Of all lists.
  __host__ __device__ int all_row_tiles() const { return batch * heads * row_tiles; }
};

/// Two launches over one mask in tiles of two shapes, of which the one that takes less time does all the work: which
/// one only the device knows. It is that of the finer tiles where they are fewer than `limit` times those of the other
/// and `allowance`.
struct TileChoice {
  const std::uint32_t *visited, *visited_finer;  // of DeviceMap; the second is null where there is but one launch
  float limit, allowance;                        // 0 and some: what the others visit does not matter, and is not known
  bool finer;                                    // which of the launches asks

  __device__ bool has_the_work() const {
    if (visited_finer == nullptr) return true;
    const float of_others = visited == nullptr ? 0 : static_cast<float>(*visited);
    return finer == (static_cast<float>(*visited_finer) < limit * of_others + allowance);
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
  TileChoice choice;  // of none, unless the kernel says more
};

/// A map of the plan's.
TileMapView map_view(const DeviceMap& map, const Plan& plan);

/// `map`: that of the kernel, in the plan, by rows.
RowArguments row_arguments(const Plan& plan, const DeviceMap& map, int* next_item);

}  // namespace flashmask::cuda
