// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/bias_gradient_tiles.cuh"
#include "cuda/sm90/bias_gradient/bias_gradient_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that finds which tiles of which heads the block's tiles of the bias need, and keeps the rings filled: a
/// tile's step, its panels of q beside those of k, then those of grad_o beside those of v; with the first step of a
/// tile of the bias also this tile.
class BiasGradientProducer {
  using Memory = BiasGradientMemory;

 public:
  __device__ __forceinline__ BiasGradientProducer(Memory& shared, const BiasGradientArguments& arguments,
                                                  const BiasGradientMaps& maps)
      : shared_(shared), arguments_(arguments), maps_(maps) {}

  /// items: parts of tiles of all blocks, one tile's after the other.
  __device__ __forceinline__ void run(int items) {
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) feed(item);
    publish({BiasStep::kEnd, 0, 0, 0, 0, 0});
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }

  /// Feeds a part of a tile of the bias: each lane looks at one of the heads that share it.
  __device__ __forceinline__ void feed(int item) {
    const BiasGradientArguments& from = arguments_;
    const BiasGradientArguments::Place place = from.place(item / from.parts, item % from.parts);
    BiasStep step{BiasStep::kStore, 0, 0, place.row_tile, place.column_tile, 0};
    bool copies_bias = true;
#pragma unroll 1
    for (int looked = 0; looked < place.heads; looked += 32) {
      const auto choose = [&](int number) {
        step.batch = place.first_batch + number / from.list_heads;
        step.head = place.first_head + number % from.list_heads;
        step.number = from.list_of(step.batch, step.head);
      };
      choose(looked + lane());
      const bool exists = looked + lane() < place.heads;
      const BiasStep::Kind kind = exists ? find(step) : BiasStep::kStore;
      const unsigned masked = __ballot_sync(~0U, kind == BiasStep::kMasked);
#pragma unroll 1
      for (unsigned left = masked | __ballot_sync(~0U, kind == BiasStep::kFull); left != 0; left &= left - 1) {
        const int found = __ffs(left) - 1;
        choose(looked + found);
        step.kind = (masked >> found & 1) != 0 ? BiasStep::kMasked : BiasStep::kFull;
        publish(step);
        copy_panels(&maps_.q, &maps_.k, step, from.k.dim);
        if (copies_bias) copy_bias(step);
        copies_bias = false;
        copy_panels(&maps_.grad_o, &maps_.v, step, from.v.dim);
      }
    }
    if (copies_bias) leave_out_bias();
    tiles_.advance();
    publish({BiasStep::kStore, place.first_batch, place.first_head, place.row_tile, place.column_tile, item});
  }

  /// Returns what a tile needs; kStore: it is skipped.
  __device__ __forceinline__ BiasStep::Kind find(const BiasStep& step) const {
    const BiasGradientArguments::TileNeeds needs = arguments_.needs_of(step.number, step.row_tile, step.column_tile);
    if (!needs.visit) return BiasStep::kStore;
    return needs.mask ? BiasStep::kMasked : BiasStep::kFull;
  }

  __device__ __forceinline__ void publish(const BiasStep& step) {
    barrier_wait(&shared_.steps_empty[steps_.slot], steps_.phase ^ 1);
    if (lane() == 0) {
      shared_.steps[steps_.slot] = step;
      barrier_arrive(&shared_.steps_full[steps_.slot]);
    }
    __syncwarp();
    steps_.advance();
  }

  /// Copies the panels of a tile's rows and columns. dims: of both.
  __device__ __forceinline__ void copy_panels(const CUtensorMap* rows, const CUtensorMap* columns, const BiasStep& step,
                                              int dims) {
#pragma unroll 1
    for (int dim = 0; dim < dims; dim += kPanel) {
      std::uint64_t* const full = &shared_.panels_full[panels_.slot];
      barrier_wait(&shared_.panels_empty[panels_.slot], panels_.phase ^ 1);
      if (lane() == 0) {
        barrier_arrive_expecting(full, 2 * Memory::kPanelBytes);
        copy_box(shared_.rows[panels_.slot], rows, full, dim, step.head, step.row_tile * Memory::kTile, step.batch);
        copy_box(shared_.columns[panels_.slot], columns, full, dim, step.head / arguments_.head_ratio,
                 step.column_tile * Memory::kTile, step.batch);
      }
      __syncwarp();
      panels_.advance();
    }
  }

  __device__ __forceinline__ void copy_bias(const BiasStep& step) {
    const BiasMap& bias = maps_.bias;
    std::uint64_t* const full = &shared_.bias_full[tiles_.slot];
    barrier_wait(&shared_.bias_empty[tiles_.slot], tiles_.phase ^ 1);
    if (lane() == 0) {
      barrier_arrive_expecting(full, sizeof(shared_.bias[0]));
#pragma unroll 1
      for (int half = 0; half < 2; ++half)
#pragma unroll 1
        for (int row = 0; row < Memory::kTile; row += kBiasPanelRows)
          copy_box<Reads::once>(shared_.bias[tiles_.slot][half] + row * kPanel * 2, &bias.map, full,
                                step.column_tile * Memory::kTile + half * kPanel, step.head * bias.of_head,
                                step.row_tile * Memory::kTile + row, step.batch * bias.of_batch);
    }
    __syncwarp();
  }

  /// Passes on a tile that nobody sees without a copy: consumers store zeros from there.
  __device__ __forceinline__ void leave_out_bias() {
    barrier_wait(&shared_.bias_empty[tiles_.slot], tiles_.phase ^ 1);
    if (lane() == 0) barrier_arrive(&shared_.bias_full[tiles_.slot]);
    __syncwarp();
  }

  Memory& shared_;
  const BiasGradientArguments& arguments_;
  const BiasGradientMaps& maps_;
  RingPosition<Memory::kSteps> steps_;
  RingPosition<Memory::kStages> panels_;
  RingPosition<Memory::kTiles> tiles_;
};

}  // namespace flashmask::cuda::sm90
