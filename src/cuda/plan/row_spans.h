// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/plan/map_squares.h"
#include "cuda/plan/tile_map.h"

/// Finds between which column tiles each row tile is visited, in any batch entry and head: a kernel that walks columns
/// from left to right then knows when it first needs a row tile, and when it is done with it.
namespace flashmask::cuda {

/// Device memory for DeviceRowSpans.
struct RowSpans {
  std::int32_t *from, *until;  ///< [row tiles]
  std::int32_t* done;          ///< number of finished blocks
};

/// Finds the spans of a map by columns, on the stream. All that `spans` points to must be 0 before.
void find_row_spans(const std::uint32_t* by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream);
void find_row_spans(const SquareMap& by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream);

}  // namespace flashmask::cuda
