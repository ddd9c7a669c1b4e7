// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/row_statistics.cuh"
#include "cuda/common/tile_walk.cuh"
#include "cuda/common/token_units.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/sm90/backward/column_shape.h"
#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/ring.cuh"
#include "cuda/sm90/instructions/shared_memory.cuh"
#include "cuda/sm90/instructions/some_of.cuh"
#include "cuda/sm90/masks/bias_panels.cuh"
#include "cuda/sm90/masks/bias_parts.cuh"
#include "cuda/sm90/masks/column_mask.cuh"
#include "cuda/sm90/masks/distance_marks.cuh"
#include "cuda/sm90/masks/near_entries.cuh"

/// What the warps of the column kernel share: shared memory and its barriers, key tiles.
namespace flashmask::cuda::sm90 {

/// Prologue and epilogue copy a row tile in quarters: the prologue kPrologueQuarters of o and its gradient at a time,
/// all four unless a bias takes the room, the epilogue kEpilogueQuarters of the sums.
constexpr int kQuarters = 4, kEpilogueQuarters = 2;
template <class Shape>
inline constexpr int kPrologueQuarters = CopiesBias<Shape> ? 2 : kQuarters;
constexpr int kQuarterBytes = 64 * 32 * 4;

__device__ __forceinline__ int Visits::place(int row_tile) const { return min(row_tile, row_tiles - 1); }

/// What a shape's consumers read of the mask. The gradient of keys of 256 dims leaves room for ALiBi's marks or for the
/// intervals of keys.
template <class Shape>
using MaskOf = ColumnMask<Shape::kForm, Shape::kRows, Shape::kColumns, Shape::kStages,
                          !(Biases<Shape> && Shape::kOfKeys && Shape::kHeadDim == 256)>;

/// A key tile and how many row tiles it visits, over all query heads; steps < 0: there are no more key tiles.
struct ColumnWork {
  int section, batch, kv_head, column_tile;
  int list;  // the mask's list, of a (batch entry, head), for the first query head
  int steps;
  TileTokens keys;
};

/// A row tile that the producer has put into a stage.
struct alignas(16) RowStep {
  int tile;  // index in [batch, query heads, padded row tiles]
  int row_tile;
  int list;    // the mask's list, of a (batch entry, head)
  int masked;  // bit 0: some scores may be masked; bit 1 + g: all scores of group g are
};

template <class Shape>
struct ColumnMemory {
  alignas(1024) std::uint8_t k[Shape::kColumnBytes];
  [[no_unique_address]] alignas(1024) SomeOf<std::uint8_t, Shape::kOfKeys ? Shape::kColumnBytes : 0> v;
  alignas(1024) std::uint8_t q[Shape::kStages][Shape::kRowBytes];
  alignas(1024) std::uint8_t grad_o[Shape::kGradientStages][Shape::kRowBytes];
  [[no_unique_address]] alignas(
      1024) SomeOf<std::uint8_t[Shape::kScoreBytes], Shape::kSums ? Shape::kStages : 0> grad_s;
  // A bias's panel of each group.
  [[no_unique_address]] alignas(
      1024) SomeOf<std::uint8_t[kBiasPanelBytes], CopiesBias<Shape> ? Shape::kGroups : 0> bias;
  alignas(16) float lse_log2[Shape::kStages][Shape::kRows];
  alignas(16) float dot[Shape::kGradientStages][Shape::kRows];
  RowStep steps[Shape::kStages];
  typename MaskOf<Shape>::Memory mask;
  using Quarter = std::uint8_t[kQuarterBytes];
  static constexpr int kPrologues = Shape::kSums ? kPrologueQuarters<Shape> : 0,
                       kEpilogues = Shape::kSums ? kEpilogueQuarters : 0,
                       kSumStages = Shape::kSums ? Shape::kStages : 0;
  [[no_unique_address]] alignas(Shape::kSums ? 1024 : 16) SomeOf<Quarter, kPrologues> prologue;
  [[no_unique_address]] alignas(Shape::kSums ? 128 : 16) SomeOf<Quarter, kEpilogues> epilogue;
  [[no_unique_address]] alignas(Shape::kSums ? 128 : 16) SomeOf<uint4, Shape::kSums ? kQuarterBytes / 16 : 0> zeros;
  ColumnWork work[Shape::kStages];
  std::uint64_t k_full, k_empty, v_full, v_empty, work_full[Shape::kStages], work_empty[Shape::kStages];
  // Consumers have added to the sums for the gradient of q.
  [[no_unique_address]] SomeOf<std::uint64_t, kSumStages> work_done;
  [[no_unique_address]] SomeOf<std::uint64_t, kPrologues> prologue_full;
  [[no_unique_address]] SomeOf<std::uint64_t, kEpilogues> epilogue_full;
  std::uint64_t q_full[Shape::kStages], q_empty[Shape::kStages];
  std::uint64_t grad_o_full[Shape::kGradientStages], grad_o_empty[Shape::kGradientStages];
  [[no_unique_address]] SomeOf<std::uint64_t, kSumStages> grad_s_full, grad_s_empty;
  [[no_unique_address]] SomeOf<std::uint64_t, CopiesBias<Shape> ? 1 : 0> bias_full, bias_empty;
  // The query head of the rows in each stage.
  [[no_unique_address]] SomeOf<int, kLocatesScores<Shape> ? Shape::kStages : 0> heads;
  // For ALiBi: marks of the rows in each stage, and their head's slope.
  [[no_unique_address]] alignas(16) SomeOf<float[Shape::kRows], Biases<Shape> ? Shape::kStages : 0> marks;
  [[no_unique_address]] SomeOf<float, Biases<Shape> ? Shape::kStages : 0> slopes;
  using Near = NearEntries<Shape::kColumns, Shape::kRows>;
  [[no_unique_address]] SomeOf<Near, AddsBias<Shape> ? Shape::kStages : 0> near;
};

/// Returns whether a counter of Progress has reached `count`. All lanes get the same answer, even if the counter
/// changes meanwhile.
__device__ __forceinline__ bool has_reached(const int* counter, int count) {
  return __all_sync(~0U, load_acquire(counter) >= count);
}

/// Phases of the barriers of a ring that starts at stage 0 with each key tile: stages are used unequally often, so each
/// has a phase of its own.
class StagePhases {
 public:
  static constexpr int kBias = 8;  // names the phase of a bias's barriers: not of a stage, but one that has room here

  __device__ __forceinline__ std::uint32_t of(int stage) const { return phases_ >> stage & 1; }
  __device__ __forceinline__ void flip(int stage) { phases_ ^= 1U << stage; }

 private:
  std::uint32_t phases_ = 0;
};

/// A position in a ring that starts at stage 0 with each key tile.
template <int kStages>
class StagePosition {
 public:
  __device__ __forceinline__ void begin() { stage_ = 0; }
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ int next() const { return stage_ + 1 == kStages ? 0 : stage_ + 1; }
  __device__ __forceinline__ std::uint32_t phase(int stage) const { return phases_.of(stage); }
  __device__ __forceinline__ void advance() {
    phases_.flip(stage_);
    stage_ = next();
  }

 private:
  int stage_ = 0;
  StagePhases phases_;
};

template <class Shape>
__device__ __forceinline__ void init_barriers(ColumnMemory<Shape>& shared) {
  for (std::uint64_t* full : {&shared.k_full, &shared.v_full}) barrier_init(full, 1);
  for (std::uint64_t* empty : {&shared.k_empty, &shared.v_empty}) barrier_init(empty, Shape::kConsumerWarps);
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    barrier_init(&shared.work_full[stage], 1);
    barrier_init(&shared.work_empty[stage], Shape::kSums ? 1 : Shape::kConsumerWarps);
    barrier_init(&shared.q_full[stage], 1);
    barrier_init(&shared.q_empty[stage], Shape::kConsumerWarps);
    if constexpr (Shape::kSums) {
      barrier_init(&shared.work_done[stage], Shape::kConsumerWarps);
      barrier_init(&shared.grad_s_full[stage], Shape::kConsumerWarps);
      barrier_init(&shared.grad_s_empty[stage], Shape::kConsumerWarps);
    }
  }
  for (int stage = 0; stage < Shape::kGradientStages; ++stage) {
    barrier_init(&shared.grad_o_full[stage], 1);
    barrier_init(&shared.grad_o_empty[stage], Shape::kConsumerWarps);
  }
  if constexpr (CopiesBias<Shape>) {
    barrier_init(shared.bias_full, 1);
    barrier_init(shared.bias_empty, Shape::kConsumerWarps);
  }
  if constexpr (Shape::kSums) {
    for (auto& full : shared.prologue_full) barrier_init(&full, 1);
    for (auto& full : shared.epilogue_full) barrier_init(&full, 1);
  }
  barrier_init_fence();
}

}  // namespace flashmask::cuda::sm90
