// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/sections.h"
#include "cuda/common/tile_walk.cuh"
#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/ring.cuh"
#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/masks/column_mask.cuh"
#include "cuda/sm90/masks/partial_tile.cuh"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"

/// What the warps of the fused kernel share: the launch's arguments, shared memory and its barriers, steps.
namespace flashmask::cuda::sm90 {

struct FusedArguments {
  BackwardStatistics statistics;
  int query_heads, kv_heads;
  int head_ratio;  // query heads that share a key head
  ScoreArguments score;
  OutputRows float32_k, float32_v;  // gradients in float32; null: in the inputs' dtype, through the copy engine
  int key_length, head_dim, value_dim;
  int positions;          // a head's row tiles, or its key tiles where these are more
  int segment_positions;  // positions per segment
  Sections segments;      // the segments of all key heads
  TileMapView rows, columns;
  MaskView mask;
  int* next_item;  // 0 at the start of a launch
  TileChoice choice;
};

template <class T, MaskForm kForm_, int kHeadDim_, int kProducerRegisters_, int kConsumerRegisters_>
struct FusedShape {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kHeadDim_, kRows = 64, kColumns = 64;
  static constexpr int kPairs = 3, kSteps = 4, kMasks = 2;  // buffers
  static constexpr int kUnits = 3;                          // units of results in flight per warp
  static constexpr int kConsumerWarps = 4, kThreads = 256, kBlocks = 2;
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kMaskAtOnce = kForm == MaskForm::bits ? 32 : 64;
  static constexpr int kTileBytes = 64 * kHeadDim * 2, kStatisticsBytes = 64 * 4;
  using Mask = ColumnMask<kForm, kRows, kColumns, 1>;
};

/// What a step adds to: a row tile's gradient of q, or a key tile's gradients of k and v.
enum class Sum : int { none, of_rows, of_keys };

/// One step: a tile, and the sum that it adds to.
struct alignas(16) FusedStep {
  Sum sum;                // none: there are no more steps
  int batch, head, tile;  // what the sum is for: a query head's row tile, or a key head's key tile
  int row_tile, column_tile;
  int list;  // the mask's list, of a (batch entry, head)
  std::int16_t query_pair, key_pair;
  bool visits;  // whether there is a tile: a sum may have none
  bool masked;  // whether some of its scores may be masked
  bool last;    // the last step of its sum
};

constexpr int kUnitRows = 8, kUnitBytes = kUnitRows * kPanel * 2;  // what a warp stores of its results at a time

/// A pair is Q and the gradient of O of a row tile, with its statistics, or K and V of a key tile.
template <class Shape>
struct FusedMemory {
  alignas(1024) std::uint8_t pairs[Shape::kPairs][2][Shape::kTileBytes];
  alignas(1024) std::uint8_t results[Shape::kConsumerWarps][Shape::kUnits][kUnitBytes];
  alignas(16) float statistics[Shape::kPairs][2][64];
  union {
    FragmentBits<Shape::kRows> of_rows;
    typename Shape::Mask::Memory of_keys;
  } masks[Shape::kMasks];
  FusedStep steps[Shape::kSteps];
  std::uint64_t posted[Shape::kSteps], full[Shape::kSteps], done[Shape::kSteps];
};

template <class Shape>
__device__ __forceinline__ void init_barriers(FusedMemory<Shape>& shared) {
  for (int i = 0; i < Shape::kSteps; ++i) {
    barrier_init(&shared.posted[i], 1);
    barrier_init(&shared.full[i], 2);  // its tiles and its mask
    barrier_init(&shared.done[i], Shape::kConsumerWarps);
  }
  barrier_init_fence();
}

/// Waits until consumers have ended `step`, one of the last kSteps. Steps count from 0; negative ones count as ended.
template <class Shape>
__device__ __forceinline__ void await_end(FusedMemory<Shape>& shared, int step) {
  if (step >= 0) barrier_wait(&shared.done[step % Shape::kSteps], step / Shape::kSteps % 2);
}

}  // namespace flashmask::cuda::sm90
