// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/ring.cuh"
#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/walk/walk_arguments.h"

/// The walk's four roles, each a warpgroup, and what they share:
///
///     producer   warp 0 asks for tiles of x, y and z, warp 1 makes the factors of steps, and warp 2 clears the rows
///                behind a node's end
///     output     out [64 × columns] = from (x state) + (weights ∘ x yᵀ) z
///     state      one or two groups, of 64 columns each: stateᵀ [64 × inner], in float32 registers; before each step it
///                is rounded into shared memory, where the output group multiplies with it
namespace flashmask::cuda::sm90 {

/// The thread's warp among those of its warpgroup.
__device__ __forceinline__ int warp_of_group() { return static_cast<int>(thread_index()) % 128 / 32; }

/// kColumns: of a slice. kVector: beside the state there is a vector, Σ weight y, and out is divided by max(|x ·
/// vector|, 1), as mLSTM's normaliser does. kGates: of the gradient of q, whose walk also leaves its GateParts; its
/// vector is Σ weight z, and the divisors are found again from q, the counterpart of z. kFindsRows: of the walk that
/// finds what rows of o are divided by, and no o: it has neither z nor a state, only the vector.
template <class T, int kInner_, int kColumns_, bool kVector_, bool kGates_ = false, bool kFindsRows_ = false>
struct WalkShape {
  using Element = T;
  static constexpr int kInner = kInner_, kColumns = kColumns_;
  static constexpr bool kVector = kVector_, kGates = kGates_, kFindsRows = kFindsRows_;
  static constexpr int kStateGroups = kColumns / 64, kThreads = 128 * (2 + kStateGroups);
  static constexpr int kParts = kInner / 128;  ///< of the state: a product of 256 columns would not fit the registers
  static constexpr bool kWide = kInner > 128 && !kFindsRows;
  static constexpr int kVectorDims = kGates ? kColumns : kInner;
  static constexpr int kStages = kWide || kGates ? 2 : 3;    ///< tiles of x, y and z
  static constexpr int kCopies = kWide ? 1 : 2;              ///< rounded states
  static constexpr int kSlots = kWide ? 1 : kGates ? 2 : 4;  ///< steps whose factors are there
  static constexpr bool kCrowded = kGates && kVector;
  static constexpr int kProducerRegisters = kStateGroups == 1 ? 80 : kWide || kCrowded ? 40 : kGates ? 48 : 72;
  static constexpr int kOutputRegisters = kStateGroups == 1 ? 208 : kWide ? 120 : kCrowded ? 200 : kGates ? 192 : 152;
  static constexpr int kStateRegisters = kStateGroups == 1 ? 208 : kWide ? 176 : kGates ? 136 : 144;
  static constexpr int kInnerBytes = kWalkTokens * kInner * 2, kColumnBytes = kWalkTokens * kColumns * 2;
  static constexpr int kTilePanel = kWalkTokens * kPanel * 2;  ///< bytes of 64 columns of a tile
  static constexpr int kStatePanel = kColumns * kPanel * 2;    ///< of 64 inner dims of a rounded state
  static constexpr int kStateBytes = kInner / kPanel * kStatePanel;

  /// Whether the products with the state run while scores are weighed.
  static constexpr bool kOverlaps = !kWide;
};

/// What is multiplied with what in a step, one number per token. With b the sums of log_forget from the step's begin
/// on, l of log_input, and m the scales of rows (docs/linear.md), in powers of two, the weight of token j in row i is
/// 2^(rows(i) − summed(j)), in pairs of numbers: b − m of i less b − l of j.
struct alignas(16) WalkFactors {
  float rows_high[kWalkTokens], rows_low[kWalkTokens], summed_high[kWalkTokens], summed_low[kWalkTokens];
  float into[kWalkTokens];  ///< of summed tokens: into the state behind the step
  float from[kWalkTokens];  ///< of rows: of the state before it, times the scale of x
  float own[kWalkTokens];   ///< of rows: m, or where rows are given, −log2 of what they are multiplied by
  float gain;               ///< of the state
  bool last;                ///< of the block's visits
  WalkVisit visit;
};

/// The part of a walk's memory for gradients of gates and of divisors.
template <class Shape, bool kGates = Shape::kGates>
struct WalkGateMemory {
  static constexpr bool kAdds = false;
};
template <class Shape>
struct WalkGateMemory<Shape, true> {
  static constexpr bool kAdds = true;  ///< has `added`
  alignas(1024) std::uint8_t counterpart[Shape::kStages][Shape::kColumnBytes];
  float crossing[4][kWalkTokens];           ///< of each warp's rows
  float added[Shape::kSlots][kWalkTokens];  ///< beside the factors: to products of rows, RowParts::divisor
};

template <class Shape>
struct WalkMemory : WalkGateMemory<Shape> {
  static constexpr int kStages = Shape::kStages, kSlots = Shape::kSlots, kCopies = Shape::kCopies;
  alignas(1024) std::uint8_t x[kStages][Shape::kInnerBytes];  ///< out, too, when its step is done
  alignas(1024) std::uint8_t y[kStages][Shape::kInnerBytes];
  alignas(1024) std::uint8_t z[kStages][Shape::kFindsRows ? 1 : Shape::kColumnBytes];
  alignas(1024) std::uint8_t state[kCopies][Shape::kFindsRows ? 1 : Shape::kStateBytes];
  WalkFactors factors[kSlots];
  float vector[kCopies][Shape::kVectorDims];
  WalkVisit visits[kStages];  ///< of the tiles, for those who store out
  std::uint64_t x_full[kStages], x_empty[kStages], yz_full[kStages], yz_empty[kStages], cleared[kStages];
  std::uint64_t factors_full[kSlots], factors_empty[kSlots], state_full[kCopies], state_empty[kCopies];
};

template <class Shape>
__device__ __forceinline__ void init_barriers(WalkMemory<Shape>& shared) {
  constexpr int kReaders = 4 + 4 * Shape::kStateGroups;  // warps of the output group and of the state's
  for (int i = 0; i < Shape::kStages; ++i) {
    barrier_init(&shared.x_full[i], 1);
    barrier_init(&shared.x_empty[i], 4);
    barrier_init(&shared.yz_full[i], 1);
    barrier_init(&shared.yz_empty[i], kReaders + 1);
    barrier_init(&shared.cleared[i], 32);
  }
  for (int i = 0; i < Shape::kSlots; ++i) {
    barrier_init(&shared.factors_full[i], 32);
    barrier_init(&shared.factors_empty[i], kReaders);
  }
  for (int i = 0; i < Shape::kCopies; ++i) {
    barrier_init(&shared.state_full[i], 4 * Shape::kStateGroups);
    barrier_init(&shared.state_empty[i], 4);
  }
  barrier_init_fence();
}

}  // namespace flashmask::cuda::sm90
