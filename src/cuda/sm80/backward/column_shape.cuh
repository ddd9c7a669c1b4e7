// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/sections.h"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/views/change.h"
#include "cuda/views/rows.h"
#include "cuda/views/scores.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda::sm80 {

/// The arguments of a launch over key tiles.
struct ColumnArguments {
  TensorRows q, k, v, grad_o;
  OutputRows grad_k, grad_v;
  bool float32_gradients;  // whether they are float32, whatever the dtype of the others
  BackwardStatistics statistics;
  float* query_sums;  // null: the gradient of q is left to another launch
  int key_length, query_heads, kv_heads, head_dim, value_dim;
  int head_ratio;  // query heads that share a key head
  ScoreArguments score;
  Sections columns;   // key tiles of key heads
  TileMapView map;    // by columns of tiles
  TileChoice choice;  // empty where there is one launch
  MaskView mask;
  ChangeOperands change = {};  // for kernels that are compiled with a change
};

/// How a block divides its work among its warps.
struct ColumnForm {
  int units;             ///< a warp takes 16 · units keys
  int groups;            ///< groups of warps: the key tile has 16 · units · groups keys
  int sharers = 1;       ///< warps that take the same keys: each computes scores of its share of the rows, and sums
                         ///< its share of the dims of the gradients of k and v
  int rows = 64;         ///< rows of a part, which are computed between two barriers
  int score_rows = 32;   ///< how many of a warp's rows are computed at once
  int stages = 2;        ///< buffers of q and the gradient of o
  int blocks = 1;        ///< blocks per multiprocessor
  bool delayed = false;  ///< the gradient of q is computed one part later, which takes a second buffer of
                         ///< gradients of scores and saves a barrier
  bool holds_values = false;  ///< v stays in registers
  bool short_rows = false;    ///< for short rows; has a kernel for plain scores only
};

/// The shape of the form Of::kForm. Tiles of the map have kRows rows; each tile is visited in kParts parts.
template <class T, int kHeadDim_, class Of>
struct ColumnShape {
  using Element = T;
  static constexpr ColumnForm kForm = Of::kForm;
  static constexpr int kHeadDim = kHeadDim_, kUnits = kForm.units, kGroups = kForm.groups, kSharers = kForm.sharers,
                       kPartRows = kForm.rows, kScoreRows = kForm.score_rows, kStages = kForm.stages,
                       kBlocks = kForm.blocks;
  static constexpr bool kDelayed = kForm.delayed, kHoldsValues = kForm.holds_values;
  static constexpr int kRows = 64, kColumns = 16 * kUnits * kGroups, kParts = kRows / kPartRows;
  static constexpr int kWarps = kGroups * kSharers, kThreads = 32 * kWarps;
  static constexpr int kOwnKeys = 16 * kUnits, kOwnRows = kPartRows / kSharers, kOwnDims = kHeadDim / kSharers;
  // A warp's part of the gradient of q.
  static constexpr int kSumAcross = kWarps == 4 || kHeadDim % 64 != 0 ? 2 : 4,
                       kSumRows = kPartRows * kSumAcross / kWarps, kSumDims = kHeadDim / kSumAcross;
  static constexpr int kPartSums = kPartRows * kHeadDim;
  using KeyTile = SharedTile<kColumns, kHeadDim, false>;
  using RowTile = SharedTile<kPartRows, kHeadDim>;
  using ScoreTile = SharedTile<kColumns, kPartRows, false>;
  static_assert(kOwnRows % kScoreRows == 0 && kOwnDims % 16 == 0 && kSumDims % 16 == 0 && kSumRows % 16 == 0);
};

/// The key tile of a block.
struct ColumnItem {
  int batch, kv_head, column_tile;

  ColumnItem() = default;
  __device__ __forceinline__ explicit ColumnItem(const ColumnArguments& arguments) {
    const SectionTile tile = arguments.columns.tile(static_cast<int>(blockIdx.x));
    batch = tile.head / arguments.kv_heads;
    kv_head = tile.head % arguments.kv_heads;
    column_tile = tile.tile;
  }
};

/// A buffer that not every shape has.
template <bool kExists, class Tile>
struct OptionalTile {
  alignas(128) std::uint8_t bytes[Tile::kBytes];
};
template <class Tile>
struct OptionalTile<false, Tile> {
  static constexpr std::uint8_t* bytes = nullptr;
};

template <class Shape>
struct ColumnMemory {
  static constexpr int kStages = Shape::kStages, kScoreStages = Shape::kDelayed ? 2 : 1;
  alignas(128) std::uint8_t k[Shape::KeyTile::kBytes];
  [[no_unique_address]] OptionalTile<!Shape::kHoldsValues, typename Shape::KeyTile> v;
  alignas(128) std::uint8_t rows[kStages][2][Shape::RowTile::kBytes];  // q and the gradient of o; at first v, where
                                                                       // registers are to hold it
  alignas(128) std::uint8_t grad_s[kScoreStages][Shape::ScoreTile::kBytes];  // transposed, like p
  [[no_unique_address]] OptionalTile<(Shape::kSharers > 1), typename Shape::ScoreTile> p;
  alignas(16) float lse_log2[kStages][Shape::kPartRows];
  alignas(16) float dot[kStages][Shape::kPartRows];
  ColumnItem item;
  TileSteps steps;
};

}  // namespace flashmask::cuda::sm80
