// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/fragment_words.cuh"
#include "cuda/common/row_tile.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/sm80/tangents/tangent_arguments.h"

namespace flashmask::cuda::sm80 {

/// The shape of tiles of 128 × 64, those of the forward's map, for heads of up to kDim dims. A warp has 16 rows.
template <class T, int kDim>
struct TangentsShape {
  using Element = T;
  static constexpr int kHeadDim = kDim, kValueDim = kDim, kRows = 128, kColumns = 64, kWarpRows = 16,
                       kWarps = kRows / kWarpRows, kThreads = 32 * kWarps;
  using QueryTile = SharedTile<kRows, kDim>;
  using KeyTile = SharedTile<kColumns, kDim>;
};

template <class Shape>
struct TangentsMemory {
  static constexpr int kTileBytes = Shape::KeyTile::kBytes;
  static_assert(Shape::QueryTile::kBytes <= 2 * kTileBytes);

  alignas(128) std::uint8_t keys[2 * kTileBytes];    // k and k̇ of a tile; at first q of the rows
  alignas(128) std::uint8_t values[2 * kTileBytes];  // v and v̇ of a tile; at first q̇ of the rows
  SharedMask<Shape::kRows, Shape::kColumns> mask;
  TileSteps steps;
  RowTile tile;
  int list;  // which list of the mask
  Rows k, tangent_k, v, tangent_v;
};

}  // namespace flashmask::cuda::sm80
