// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/row_tile.cuh"
#include "cuda/common/tile_walk.cuh"
#include "cuda/common/token_units.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/ring.cuh"
#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/instructions/some_of.cuh"
#include "cuda/sm90/masks/bias_map.h"
#include "cuda/sm90/masks/bias_parts.cuh"
#include "cuda/sm90/masks/distance_marks.cuh"
#include "cuda/sm90/masks/near_entries.cuh"
#include "cuda/sm90/masks/partial_tile.cuh"
#include "cuda/views/rows.h"

/// What the warps of a kernel over row tiles share: shared memory and its barriers, row tiles and work. A kernel's
/// Shape defines its tiles, its rings and its warps.
namespace flashmask::cuda::sm90 {

constexpr int kWorkSlots = 2;
// After a row tile of more than kManyTiles tiles, the next one is taken only when kTilesAhead tiles are left to copy.
constexpr int kManyTiles = 8, kTilesAhead = 4;
// With this many tiles or fewer on average, row tiles find their keys in the L2 cache in whatever order heads are
// taken.
constexpr int kFewTiles = 4;

/// Tensors that the copy engine reads, and `result`, which it stores, also one row at a time. The forward has no
/// grad_o, the gradient of q no results. bias: for kernels that copy one, else null.
struct RowTensors {
  const CUtensorMap *q, *k, *v, *grad_o, *result, *result_row;
  const BiasMap* bias;
};

/// A row tile as the scheduler publishes it, so that no other warp has to divide by numbers of heads.
struct Work {
  RowTile tile;
  TileTokens rows;
  int masked_tiles, full_tiles;

  __device__ __forceinline__ int tiles() const { return masked_tiles + full_tiles; }
  __device__ __forceinline__ bool exists() const { return tile.batch >= 0; }
};

/// Whether the seed of dropout is kept in shared memory, where wide heads leave no registers for it.
template <class Shape>
inline constexpr bool kStoresSeed = Shape::kHeadDim > 192 && Drops<Shape>;

/// How many panels of a bias each group has room for.
template <class Shape>
constexpr int bias_slots() {
  if constexpr (CopiesBias<Shape>) return Shape::kBiasSlots;
  return 0;
}
/// Groups whose panels share barriers: each has its own, as one is ahead of the other, but at 256 dims, whose consumers
/// have no register for them.
template <class Shape>
inline constexpr int kBiasSharers = bias_slots<Shape>() == 1 ? Shape::kGroups : 1;

/// q: Q of a row tile, followed by the gradient of O for kernels that read it.
template <class Shape>
struct RowMemory {
  alignas(1024) std::uint8_t q[Shape::kQueryStages][Shape::kQueryBytes];
  alignas(1024) std::uint8_t k[Shape::kKeyStages][Shape::kKeyBytes];
  alignas(1024) std::uint8_t v[Shape::kValueStages][Shape::kValueBytes];
  [[no_unique_address]] alignas(1024) SomeOf<std::uint8_t[Shape::kGroups][kBiasPanelBytes], bias_slots<Shape>()> bias;
  alignas(16) FragmentBits<Shape::kRows> bits[Shape::kBitSlots];
  Work work[kWorkSlots];
  std::uint64_t q_full[Shape::kQueryStages], q_empty[Shape::kQueryStages];
  std::uint64_t k_full[Shape::kKeyStages], k_empty[Shape::kKeyStages];
  std::uint64_t v_full[Shape::kValueStages], v_empty[Shape::kValueStages];
  std::uint64_t bits_full[Shape::kBitSlots], bits_empty[Shape::kBitSlots];
  std::uint64_t work_full[kWorkSlots], work_empty[kWorkSlots];
  using BiasBarriers = SomeOf<std::uint64_t[Shape::kGroups / kBiasSharers<Shape>], bias_slots<Shape>()>;
  [[no_unique_address]] BiasBarriers bias_full, bias_empty;
  // For each buffer of K: marks of its keys, the number of its tile, its first key, and what biases it.
  [[no_unique_address]] SomeOf<float[Shape::kColumns], Biases<Shape> ? Shape::kKeyStages : 0> marks;
  [[no_unique_address]] SomeOf<int, Drops<Shape> ? Shape::kKeyStages : 0> column_tiles;
  [[no_unique_address]] SomeOf<int, AddsBias<Shape> || Changes<Shape> ? Shape::kKeyStages : 0> first_keys;
  using Near = NearEntries<Shape::kRows, Shape::kColumns>;
  [[no_unique_address]] SomeOf<Near, AddsBias<Shape> ? Shape::kKeyStages : 0> near;
  // What each warp is at, as registers are short.
  [[no_unique_address]] SomeOf<Work, kLocatesScores<Shape> ? Shape::kConsumerWarps : 0> taken;
  [[no_unique_address]] SomeOf<StoredDropoutSeed, kStoresSeed<Shape> ? Shape::kConsumerWarps : 0> seeds;
};

/// Initializes a ring whose slots one thread fills and `readers` warps empty.
template <int kSlots>
__device__ __forceinline__ void init_ring(std::uint64_t (&full)[kSlots], std::uint64_t (&empty)[kSlots], int readers) {
  for (int i = 0; i < kSlots; ++i) {
    barrier_init(&full[i], 1);
    barrier_init(&empty[i], readers);
  }
}

template <class Shape>
__device__ __forceinline__ void init_barriers(RowMemory<Shape>& shared) {
  init_ring(shared.q_full, shared.q_empty, Shape::kConsumerWarps);
  init_ring(shared.k_full, shared.k_empty, Shape::kConsumerWarps);
  init_ring(shared.v_full, shared.v_empty, Shape::kConsumerWarps);
  init_ring(shared.bits_full, shared.bits_empty, Shape::kConsumerWarps);
  if constexpr (CopiesBias<Shape>) {
    for (int slot = 0; slot < Shape::kBiasSlots; ++slot)
      init_ring(shared.bias_full[slot], shared.bias_empty[slot], 4 * kBiasSharers<Shape>);
  }
  init_ring(shared.work_full, shared.work_empty,
            Shape::kConsumerWarps + Shape::kBuilderWarps + 1 + (CopiesBias<Shape> ? 1 : 0));
  barrier_init_fence();
}

/// Waits for the next row tile that the scheduler published, or none; it stays in its slot until release_work().
template <class Shape>
__device__ __forceinline__ Work await_work(RowMemory<Shape>& shared, const RingPosition<kWorkSlots>& position) {
  barrier_wait(&shared.work_full[position.slot], position.phase);
  return shared.work[position.slot];
}

template <class Shape>
__device__ __forceinline__ void release_work(RowMemory<Shape>& shared, RingPosition<kWorkSlots>& position) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(&shared.work_empty[position.slot]);
  position.advance();
}

template <class Shape>
__device__ __forceinline__ Work take_work(RowMemory<Shape>& shared, RingPosition<kWorkSlots>& position) {
  const Work work = await_work(shared, position);
  release_work(shared, position);
  return work;
}

}  // namespace flashmask::cuda::sm90
