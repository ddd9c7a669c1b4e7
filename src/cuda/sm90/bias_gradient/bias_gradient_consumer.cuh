// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/softcap.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm90/bias_gradient/bias_gradient_memory.cuh"
#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/masks/bias_panels.cuh"
#include "cuda/sm90/masks/row_reads.cuh"

namespace flashmask::cuda::sm90 {

/// Stores a group's 64 rows of the sums of a tile by way of shared memory, of which each warp takes 16 rows. Lane 0 of
/// each warp commits a group of stores.
template <class T, int kScores>
__device__ __forceinline__ void store_sums(const float (&sums)[kScores], BiasGradientMemory::Tile& tile, int group,
                                           const BiasMap& to, int batch, int head, int row_tile, int column_tile) {
  constexpr int kTile = BiasGradientMemory::kTile;
  const int first = row_tile * kTile + group * 64;
  store_rows_staged<T>(sums, {1, 1}, tile[0] + group * 64 * kPanel * 2, sizeof(tile[0]), {&to.map, nullptr}, first,
                       first + 64, head * to.of_head, batch * to.of_batch, column_tile * kTile);
}

/// A warpgroup, which takes 64 rows of every tile. It recomputes p from q kᵀ and the gradients of p from grad_o vᵀ, and
/// adds gradients of scores up in registers, in the order of steps.
template <class T>
class BiasGradientConsumer {
  using Memory = BiasGradientMemory;
  static constexpr int kScores = Memory::kTile / 2;
  using Scores = float[kScores];

 public:
  __device__ __forceinline__ BiasGradientConsumer(Memory& shared, const BiasGradientArguments& arguments,
                                                  const BiasGradientMaps& maps)
      : shared_(shared), arguments_(arguments), maps_(maps), group_(__shfl_sync(~0U, threadIdx.x / 128 - 1, 0)) {}

  __device__ __forceinline__ void run() {
    for (BiasStep step = take_step(); step.kind != BiasStep::kEnd; step = take_step()) {
      Scores sums = {};
      pin(sums);
      for (; step.kind != BiasStep::kStore; step = take_step()) add_tile(sums, step);
      store(sums, step);
    }
    if (lane() == 0) await_stores_read();
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }
  /// The warp's first row among those of the tile.
  __device__ __forceinline__ int first_row() const { return group_ * 64 + threadIdx.x % 128 / 32 * 16; }

  __device__ __forceinline__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ BiasStep take_step() {
    barrier_wait(&shared_.steps_full[steps_.slot], steps_.phase);
    const BiasStep step = shared_.steps[steps_.slot];
    __syncwarp();
    if (lane() == 0) barrier_arrive_behind(&shared_.steps_empty[steps_.slot], step.kind ^ step.number);
    steps_.advance();
    return step;
  }

  /// Adds the gradients of scores of a head's tile to the sums. What a tile needs beside the copies is read from global
  /// memory while these are on their way.
  __device__ __forceinline__ void add_tile(Scores& sums, const BiasStep& step) {
    const BiasGradientArguments& from = arguments_;
    const int row = step.row_tile * Memory::kTile + first_row();
    const std::int64_t of_head = static_cast<std::int64_t>(step.batch) * from.query_heads + step.head;
    RowNumbers<1> lse_log2, dots;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = of_head * from.statistics.padded + row + lane() / 4 + 8 * half;
      lse_log2.numbers[0][half] = __ldg(from.statistics.lse_log2 + at);
      dots.numbers[0][half] = __ldg(from.statistics.dot + at);
    }
    FragmentWords<1, Memory::kTile> masked{};
    if (step.kind == BiasStep::kMasked)
      read_words(masked, from.mask, step.number, row, step.column_tile * Memory::kTile);
    Scores s, grad;
    multiply(s, from.k.dim);
    finish_store();
    if (from.score.to_exponent != 0) cap(as_unit(s), from.score.to_exponent);
    add_bias(s);
    if (step.kind == BiasStep::kMasked) hide(as_unit(s), masked);
    exponentiate(as_unit(s), from.score.bias.product_log2, lse_log2);
    multiply(grad, from.v.dim);
    for_each_score<1, kScores / 4>([&](int unit, int eight, int i) {
      float& sum = as_unit(sums)[unit][eight][i];
      sum = fmaf(as_unit(s)[unit][eight][i], as_unit(grad)[unit][eight][i] - dots.at(unit, eight, i), sum);
    });
  }

  /// d = rows columnsᵀ over the panels of `dims`, each of which is given back as soon as it is read.
  __device__ __forceinline__ void multiply(Scores& d, int dims) {
    std::uint64_t* before = multiply_panels<false>(d);
#pragma unroll 1
    for (int dim = kPanel; dim < dims; dim += kPanel) {
      std::uint64_t* const own = multiply_panels<true>(d);
      wgmma_wait<1>();
      release(before);
      before = own;
    }
    wgmma_wait<0>();
    pin(d);
    release(before);
  }

  /// Issues the product of the next pair of panels; returns the barrier that gives the pair back.
  template <bool kAdds>
  __device__ __forceinline__ std::uint64_t* multiply_panels(Scores& d) {
    const int slot = panels_.slot;
    barrier_wait(&shared_.panels_full[slot], panels_.phase);
    panels_.advance();
    wgmma_fence();
    multiply_tiles<T, kPanel, 0, 0>(d, shared_address(shared_.rows[slot]) + group_ * 64 * kPanel * 2,
                                    shared_.columns[slot], kAdds);
    return &shared_.panels_empty[slot];
  }

  __device__ __forceinline__ void add_bias(Scores& s) {
    barrier_wait(&shared_.bias_full[tiles_.slot], tiles_.phase);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      add_panel<T>(reinterpret_cast<float(&)[kPanel / 2]>(s[half * kPanel / 2]), shared_.bias[tiles_.slot][half],
                   first_row(), arguments_.score.bias.to_products);
  }

  /// Stores the sums, by way of the tile's bias, of which each warp has read its own rows alone; of a part, as they
  /// lie.
  __device__ __forceinline__ void store(const Scores& sums, const BiasStep& step) {
    finish_store();
    std::uint64_t* const empty = &shared_.bias_empty[tiles_.slot];
    barrier_wait(&shared_.bias_full[tiles_.slot], tiles_.phase);
    if (arguments_.parts > 1) {
      float* const to = part_of(arguments_, step.number, static_cast<int>(threadIdx.x) - 128);
#pragma unroll
      for (int i = 0; i < kScores; ++i) to[i * Memory::kConsumers] = sums[i];
      release(empty);
    } else {
      store_sums<T>(sums, shared_.bias[tiles_.slot], group_, maps_.gradient, step.batch, step.head, step.row_tile,
                    step.column_tile);
      stored_ = empty;
    }
    tiles_.advance();
  }

  /// Gives back the place of the last tile that was stored, once the copy engine has read it.
  __device__ __forceinline__ void finish_store() {
    if (stored_ == nullptr) return;
    if (lane() == 0) {
      await_stores_read();
      barrier_arrive(stored_);
    }
    stored_ = nullptr;
  }

  Memory& shared_;
  const BiasGradientArguments& arguments_;
  const BiasGradientMaps& maps_;
  int group_;
  RingPosition<Memory::kSteps> steps_;
  RingPosition<Memory::kStages> panels_;
  RingPosition<Memory::kTiles> tiles_;
  std::uint64_t* stored_ = nullptr;  // the barrier of the place from which the last tile is being stored
};

}  // namespace flashmask::cuda::sm90
