// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/plan/map_squares.h"
#include "cuda/plan/tile_map.h"

/// Between which column tiles row tiles are visited, whatever the batch entry and head: a kernel that takes columns
/// from left to right knows from it when it needs a row tile for the first time, and when it is done with it.
namespace flashmask::cuda {

/// Of DeviceRowSpans, in the memory of the device.
struct RowSpans {
  std::int32_t *from, *until;  ///< [row tiles]
  std::int32_t* done;          ///< blocks that are done
};

/// From a map by columns, on the stream. All that `spans` points to is 0 before.
void find_row_spans(const std::uint32_t* by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream);
void find_row_spans(const SquareMap& by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream);

}  // namespace flashmask::cuda
