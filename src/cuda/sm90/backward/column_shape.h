// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/common/sections.h"
#include "cuda/scores/changes.h"
#include "cuda/sm90/masks/bias_map.h"
#include "cuda/views/change.h"
#include "cuda/views/plan.h"
#include "cuda/views/scores.h"
#include "cuda/views/tensors.h"
#include "flashmask/mask_shape.h"

namespace flashmask::cuda::sm90 {

/// Which key tiles visit a row tile, whatever the head.
struct Visits {
  DeviceRowSpans spans;  // null: any key tile may visit any row tile
  int row_tiles, column_tiles;

  /// Returns the first key tile that visits this row tile or a later one.
  __device__ __forceinline__ int first(int row_tile) const {
    return spans.from == nullptr ? 0 : spans.from[place(row_tile)];
  }
  /// Returns the end of the key tiles that visit this row tile or an earlier one.
  __device__ __forceinline__ int end(int row_tile) const {
    return spans.until == nullptr ? column_tiles : spans.until[place(row_tile)];
  }

 private:
  /// Tiles of the workspace that lie past the last row count as the last row tile.
  __device__ int place(int row_tile) const;
};

/// Arguments of one launch, beside the tensors that the copy engine reads.
/// scale, dropout, alibi and bias are those of ScoreArguments: as one member, wherever it stands, they make
/// ptxas spill 20 bytes at 64 dims.
struct ColumnArguments {
  void *grad_q, *grad_k, *grad_v;
  std::int64_t grad_q_batch, grad_q_row, grad_q_head;
  std::int64_t grad_k_batch, grad_k_row, grad_k_head;  // strides in elements
  std::int64_t grad_v_batch, grad_v_row, grad_v_head;
  bool float32_gradients;  // whether the gradients of k and v are float32, whatever the dtype of the other tensors
  BackwardStatistics statistics;
  LseView lse;
  float* query_sums;
  int query_length, key_length, query_heads, kv_heads, head_dim, value_dim;
  int head_ratio;  // query heads that share a key head
  float scale;
  float product_log2;  // what turns products, of capped scores the capped ones, into powers of two: biases are added
                       // in units of products
  Sections columns;    // key tiles of key heads
  Sections rows;       // row tiles of query heads, in the workspace
  TileMapView map;     // by columns of tiles
  TileMapView halves;  // by columns of tiles of one group's 64 keys; null: no group skips a tile
  Visits visits;
  MaskView mask;
  Progress progress;
  TileChoice choice;
  DropoutArguments dropout;
  DeviceUnits query_units, key_units;
  AlibiArguments alibi;      // for kernels that bias scores
  BiasArguments bias;        // for kernels that add a bias tensor
  SoftcapArguments softcap;  // for kernels that cap scores
  ChangeOperands change;     // for kernels that are compiled with a change
};

/// kSums: the gradient of q is computed. kDelayed: a tile's gradient of q is computed during the next tile
/// (column_consumer.cuh). kOfKeys, kOfValues: which of the other gradients are computed. Stages: buffers of Q and of
/// the gradient of O.
template <class T, MaskForm kForm_, int kHeadDim_, int kRows_, bool kDelayed_, bool kSums_, int kProducerRegisters_,
          int kConsumerRegisters_>
struct ColumnShape {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kHeadDim_, kRows = kRows_, kColumns = 128, kGroups = 2, kStages = 2,
                       kGradientStages = 2;
  static constexpr bool kDelayed = kDelayed_, kSums = kSums_, kOfKeys = true, kOfValues = true;
  static constexpr bool kLeavesOut = kDelayed && kForm == MaskForm::intervals;
  static constexpr int kConsumerWarps = 4 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kRowBytes = kRows * kHeadDim * 2, kColumnBytes = kColumns * kHeadDim * 2,
                       kScoreBytes = kRows * kColumns * 2, kStatisticsBytes = kRows * 4;
  static constexpr int kTileSums = kRows * kHeadDim;  // for a row tile's gradient of q
};

/// A shape without the gradient of q. For wide heads, registers hold only one of the other gradients, so each takes its
/// own pass.
template <class T, MaskForm kForm, int kHeadDim, int kRows, int kStages_, bool kOfKeys_ = true, bool kOfValues_ = true>
struct CarriedColumnShape : ColumnShape<T, kForm, kHeadDim, kRows, false, false, 24, 240> {
  static constexpr bool kOfKeys = kOfKeys_, kOfValues = kOfValues_;
  static constexpr int kStages = kStages_, kGradientStages = kOfValues ? kStages : 1;
};

/// Shapes that sum the gradient of q.
template <class T, MaskForm kForm>
using Columns64 = ColumnShape<T, kForm, 64, 128, false, true, 24, 240>;
template <class T, MaskForm kForm>
using Columns128 = ColumnShape<T, kForm, 128, 64, true, true, 24, 240>;

/// Shapes without the gradient of q.
template <class T, MaskForm kForm>
using CarriedColumns64 = CarriedColumnShape<T, kForm, 64, 128, 2>;
template <class T, MaskForm kForm>
using CarriedColumns128 = CarriedColumnShape<T, kForm, 128, 64, 3>;

/// Wide heads: the gradients of k and v take a pass each.
template <class T, MaskForm kForm, int kHeadDim>
using WideKeyColumns = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, true, false>;
template <class T, MaskForm kForm, int kHeadDim>
using WideValueColumns = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, false, true>;

template <class Shape>
struct WithDropout {
  using Type = Dropping<Shape>;
};
template <class T, MaskForm kForm, int kHeadDim, int kRows, int kProducers, int kConsumers>
struct WithDropout<ColumnShape<T, kForm, kHeadDim, kRows, true, true, kProducers, kConsumers>> {
  using Type = Dropping<ColumnShape<T, kForm, kHeadDim, kRows, false, true, kProducers, kConsumers>>;
};

/// The shape with the same tile for problems with dropout. Its sums are not delayed: there are too few registers.
template <class Shape>
using DroppingColumns = typename WithDropout<Shape>::Type;

/// The shape with the same tile for problems with a bias tensor. At 128 dims, where a value for each score is served,
/// it has room for those of a tile.
template <class Shape>
struct AddingColumns : Adding<Shape> {
  static constexpr int kBiasSlots = Shape::kHeadDim == 128 ? 1 : 0;
  static_assert(kBiasSlots == 0 || Shape::kRows == kBiasPanelRows);
};

/// The shape that is compiled with a change of scores (cuda/compile). kEightsAtOnce: of how many eights of scores
/// probabilities and gradients are made at once, where both are at hand.
template <class Shape, int kEightsAtOnce_>
struct ColumnsToChange : Shape {
  static constexpr int kEightsAtOnce = kEightsAtOnce_;
};
template <class Shape>
constexpr int eights_at_once() {
  if constexpr (requires { Shape::kEightsAtOnce; }) return Shape::kEightsAtOnce;
  return 0;
}

/// What the copy engine reads; o_quarters and grad_o_quarters in quarters of a row tile.
struct ColumnMaps {
  CUtensorMap q, k, v, grad_o, o_quarters, grad_o_quarters;
  BiasMap bias;
};

/// Launches a shape's kernel. Those of plain scores are compiled in backward.cu, the instances in column_dropping.cu,
/// column_capping.cu, column_biasing.cu and column_adding.cu.
template <class Shape>
void launch_columns(const ColumnArguments& arguments, const ColumnMaps& maps, int blocks, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
