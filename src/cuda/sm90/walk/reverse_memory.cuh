// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/walk/walk_memory.cuh"

/// The walk from last to first, which computes ∂k and ∂v at once, of slices of 128 keys and values. With g = ∂o and Y
/// [key × value] the gradient of the state behind a step:
///
///     key group     ∂k [64 × 128] = into (v Yᵀ) + weightsᵀ (v gᵀ) q      one rounded copy of Y serves both
///     value group   ∂v [64 × 128] = into (k Y)  + weightsᵀ (k qᵀ) g
///     state group   Y = gain Y + (q from)ᵀ g, 128 float32 registers a thread
///
/// Where o is divided, by the sum of weights, that sum's gradient is added to each product v g, and Y has one more
/// column, the vector.
namespace flashmask::cuda::sm90 {

template <class T, bool kGates_, bool kVector_>
struct ReverseShape {
  using Element = T;
  static constexpr bool kGates = kGates_, kVector = kVector_;
  static constexpr int kDim = kReverseDim, kThreads = 512, kStages = 2, kSlots = 2, kCopies = 2;
  static constexpr int kTilePanel = kWalkTokens * kPanel * 2, kTileBytes = kWalkTokens * kDim * 2;
  static constexpr int kStatePanel = kDim * kPanel * 2;  ///< rows of keys, 64 values
  static constexpr int kProducerRegisters = 48, kKeyRegisters = 136, kValueRegisters = 128, kStateRegisters = 200;
};

template <class Shape>
struct ReverseMemory {
  static constexpr int kStages = Shape::kStages, kSlots = Shape::kSlots, kCopies = Shape::kCopies;
  alignas(1024) std::uint8_t q[kStages][Shape::kTileBytes];
  alignas(1024) std::uint8_t g[kStages][Shape::kTileBytes];
  alignas(1024) std::uint8_t k[kStages][Shape::kTileBytes];  ///< ∂v, too, when its step is done
  alignas(1024) std::uint8_t v[kStages][Shape::kTileBytes];  ///< ∂k, likewise
  alignas(1024) std::uint8_t state[kCopies][2 * Shape::kStatePanel];
  static constexpr bool kAdds = true;
  WalkFactors factors[kSlots];
  float added[kSlots][kWalkTokens];  ///< beside the factors: to products of rows, RowParts::divisor
  float across[4], vector[kCopies][Shape::kDim];
  WalkVisit visits[kStages];
  std::uint64_t kv_full[kStages], kv_empty[kStages], qg_full[kStages], qg_empty[kStages], cleared[kStages];
  std::uint64_t keys_read[kStages];  ///< with gates: by the key group, before ∂v takes their place
  std::uint64_t factors_full[kSlots], factors_empty[kSlots], state_full[kCopies], state_empty[kCopies];
};

template <class Shape>
__device__ __forceinline__ void init_barriers(ReverseMemory<Shape>& shared) {
  for (int i = 0; i < Shape::kStages; ++i) {
    barrier_init(&shared.kv_full[i], 1);
    barrier_init(&shared.kv_empty[i], 8);
    barrier_init(&shared.qg_full[i], 1);
    barrier_init(&shared.qg_empty[i], 12 + 1);
    barrier_init(&shared.cleared[i], 32);
    barrier_init(&shared.keys_read[i], 4);
  }
  for (int i = 0; i < Shape::kSlots; ++i) {
    barrier_init(&shared.factors_full[i], 32);
    barrier_init(&shared.factors_empty[i], 12);
  }
  for (int i = 0; i < Shape::kCopies; ++i) {
    barrier_init(&shared.state_full[i], 4);
    barrier_init(&shared.state_empty[i], 8);
  }
  barrier_init_fence();
}

}  // namespace flashmask::cuda::sm90
