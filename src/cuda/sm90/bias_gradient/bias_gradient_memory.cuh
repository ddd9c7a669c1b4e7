// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/bias_gradient_arguments.h"
#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/ring.cuh"
#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/masks/bias_map.h"

/// What the warps of the gradient of a bias share: shared memory and its barriers, and steps.
namespace flashmask::cuda::sm90 {

/// What the copy engine reads: tiles of q, k, v and grad_o, panels of the bias; and gradient, to which it stores.
struct BiasGradientMaps {
  CUtensorMap q, k, v, grad_o;
  BiasMap bias, gradient;
};

/// What the consumers do next: add the gradients of scores of a head's tile, or store the sums of a tile of the bias,
/// whose batch entry and head these are then.
struct alignas(16) BiasStep {
  enum Kind { kFull, kMasked, kStore, kEnd };

  Kind kind;
  int batch, head, row_tile, column_tile;
  int number;  // of the mask's list, of a (batch entry, head); of sums to store, of the part of their tile
};

struct BiasGradientMemory {
  static constexpr int kTile = static_cast<int>(kBiasTile), kPanelBytes = kTile * kPanel * 2;
  static constexpr int kGroups = kTile / 64, kConsumers = 128 * kGroups, kThreads = 128 + kConsumers;
  static constexpr int kStages = 5, kTiles = 2, kSteps = 4;
  using Tile = std::uint8_t[kTile / kPanel][kPanelBytes];  // panels of 64 keys

  // Panels of 64 dims, in pairs that a product multiplies: of q and k, or of grad_o and v.
  alignas(1024) std::uint8_t rows[kStages][kPanelBytes];
  alignas(1024) std::uint8_t columns[kStages][kPanelBytes];
  // Tiles of the bias. Each stays for all steps of the tile; at last, its gradient replaces it.
  alignas(1024) Tile bias[kTiles];
  BiasStep steps[kSteps];
  std::uint64_t panels_full[kStages], panels_empty[kStages];
  std::uint64_t bias_full[kTiles], bias_empty[kTiles];
  std::uint64_t steps_full[kSteps], steps_empty[kSteps];
};

__device__ __forceinline__ void init_barriers(BiasGradientMemory& shared) {
  const auto init_ring = [](auto& full, auto& empty) {
    for (auto& barrier : full) barrier_init(&barrier, 1);
    for (auto& barrier : empty) barrier_init(&barrier, BiasGradientMemory::kConsumers / 32);
  };
  init_ring(shared.panels_full, shared.panels_empty);
  init_ring(shared.bias_full, shared.bias_empty);
  init_ring(shared.steps_full, shared.steps_empty);
  barrier_init_fence();
}

/// Returns where a thread's first number of a part of a tile lies; the others are so many threads further on each.
__device__ __forceinline__ float* part_of(const BiasGradientArguments& arguments, std::int64_t number, int thread) {
  return arguments.partial + number * BiasGradientMemory::kTile * BiasGradientMemory::kTile + thread;
}

}  // namespace flashmask::cuda::sm90
