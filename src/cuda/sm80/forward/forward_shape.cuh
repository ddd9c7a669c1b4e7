// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/fragment_words.cuh"
#include "cuda/common/row_tile.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/sm80/common/own_bias.cuh"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/views/change.h"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda::sm80 {

struct ForwardArguments : RowArguments {
  TensorRows q, k, v;
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int value_dim;
  MaxScoresView max_scores;  // for kernels that keep them
  ChangeOperands change;     // for kernels that are compiled with a change
};

/// Where Q of a row tile is while keys are streamed. shared: in a buffer of its own. registers: in registers, read from
/// such a buffer once. staged: in registers, read from the ring before keys arrive there, where there is no room for a
/// buffer; what registers do not hold of Q lies after the ring, and stays there.
enum class Queries { shared, registers, staged };

/// The shape of tiles of kRows × 64. kUnits: units of 16 rows per warp; kSlots: buffers of the ring of K and V; kHeld:
/// panels of Q, of 16 dims, in registers. Shapes of 64 rows are for short rows: they give more blocks, which wait for
/// each other less. They have kernels for plain scores only.
template <class T, int kHeadDim_, int kValueDim_, int kUnits_, Queries kQueries_, int kSlots_, int kRows_ = 128,
          int kHeld_ = kQueries_ == Queries::shared ? 0 : kHeadDim_ / 16>
struct ForwardShape {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_, kValueDim = kValueDim_, kUnits = kUnits_, kSlots = kSlots_;
  static constexpr int kRows = kRows_, kColumns = 64, kWarpRows = 16 * kUnits, kWarps = kRows / kWarpRows,
                       kThreads = 32 * kWarps,
                       kBlocks = kRows == 64      ? (kHeadDim == 64 ? 4 : 3)
                                 : kHeadDim <= 32 ? 3
                                 : kUnits == 2    ? 2
                                                  : 1;  // blocks per multiprocessor
  static constexpr Queries kQueries = kQueries_;
  static constexpr int kHeld = kHeld_;
  static constexpr bool kShort = kRows == 64;
  static constexpr bool kTakesBias = kHeadDim < 256 || kSlots == 2;    // of tensors; else registers lack for it
  static constexpr bool kTakesEights = kUnits == 1 || kHeadDim <= 64;  // of its values, at a time; the same
  using QueryTile = SharedTile<kRows, kHeadDim>;
  using KeyTile = SharedTile<kColumns, kHeadDim>;
  using ValueTile = SharedTile<kColumns, kValueDim>;
  static constexpr int kHeldBytes = kHeld * QueryTile::kPanelBytes;
  static constexpr int kQueryBytes = QueryTile::kBytes - (kQueries == Queries::staged ? kHeldBytes : 0);
  static constexpr int kSlotBytes = KeyTile::kBytes > ValueTile::kBytes ? KeyTile::kBytes : ValueTile::kBytes;
  static_assert(kSlots == 2 || kSlots == 3);
  static_assert(kQueries != Queries::staged || kHeldBytes <= kSlots * kSlotBytes);
};

template <class Shape>
struct ForwardMemory {
  alignas(128) std::uint8_t ring[Shape::kSlots * Shape::kSlotBytes];
  alignas(128) std::uint8_t queries[Shape::kQueryBytes + 16];  // where they are staged, the panels not held
  SharedMask<Shape::kRows, Shape::kColumns> masks[2];
  TileSteps steps;
  RowTile tile;
  int list;       // which list of the mask
  int next_item;  // the item that the block takes after this one, where it takes several
  Rows keys, values;
  StoredDropoutSeed seed;  // where kernels with dropout have no registers for it
};

/// Whether the kernel copies values of a bias ahead, where comes_in_units() says so.
template <class Shape>
concept StagesBias = ChangesScores<Shape> && requires {
  requires Shape::kHeadDim <= 32 && Shape::kSlots == 3;
};

/// The memory of such a call.
template <class Shape>
struct BiasedForwardMemory : ForwardMemory<Shape> {
  using OwnBias = sm80::OwnBias<typename Shape::Element, Shape::kWarpRows, Shape::kColumns>;
  alignas(128) std::uint8_t bias[Shape::kWarps][OwnBias::kBytes];
};

}  // namespace flashmask::cuda::sm80
