// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/copy_mask.cuh"
#include "cuda/common/fragment_words.cuh"
#include "cuda/common/row_tile.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/largest_scores.cuh"
#include "cuda/scores/running_softmax.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/sm80/common/wide_products.cuh"
#include "cuda/sm80/forward/forward_arguments.h"

namespace flashmask::cuda::sm80 {

/// A block keeps 64 rows, with all dims of their queries; keys and values are streamed in tiles of 128.
template <class T>
struct WideForwardShape : WideShape<T, false> {
  using Base = WideShape<T, false>;
  static constexpr int kRows = Base::kOuter, kColumns = Base::kInner, kBlocks = 1;
};

template <class Shape>
struct WideForwardMemory {
  WideRing<Shape> ring;
  alignas(128) std::uint8_t queries[Shape::kChunks][Shape::OuterTile::kBytes];
  SharedMask<Shape::kRows, Shape::kColumns> mask;
  float of_sharers[Shape::kSharers][Shape::kRows];  // maxima of a tile, at the end sums
  RowTile tile;
  TileSteps steps;
};

/// The forward for wide heads. Sharers agree on the maxima of a tile before they compute exponentials.
template <class Shape>
class WideForwardBlock {
  using T = typename Shape::Element;
  using Products = WideProducts<Shape>;
  using Scores = typename Products::Scores;
  using Sums = typename Products::Sums;
  using Softmax = RunningSoftmax<Shape::kUnits>;
  using OfRows = typename Softmax::OfRows;
  using Copies = ChunkCopies<Shape>;
  static constexpr int kUnits = Shape::kUnits;

 public:
  __device__ __forceinline__ WideForwardBlock(WideForwardMemory<Shape>& shared, const ForwardArguments& arguments)
      : shared_(shared), arguments_(arguments), products_(shared.ring) {}

  __device__ __forceinline__ void run() {
    const RowTile tile(static_cast<int>(blockIdx.x), arguments_, arguments_.section_heads, arguments_.map.outer_tiles);
    if (thread_index() == 0) shared_.tile = tile;
    shared_.steps.template begin<Shape::kWarps>(lists_of(tile), [] {});
    shared_.steps.extend(lists_of(tile), 0);
    __syncthreads();
    Sums o = {};
    softmax_.clear();
    largest_.clear();
    if (shared_.steps[0].exists()) attend(o);
    finish_rows(o);
  }

 private:
  __device__ __forceinline__ int batch() const { return shared_.tile.batch; }
  __device__ __forceinline__ int head() const { return shared_.tile.head; }
  __device__ __forceinline__ int kv_head() const { return head() / arguments_.head_ratio; }
  __device__ __forceinline__ int first_row() const { return shared_.tile.row_tile * Shape::kRows; }

  __device__ __forceinline__ TileLists lists_of(const RowTile& tile) const {
    return {arguments_.map, tile.batch, tile.head, 1, tile.row_tile, false};
  }

  __device__ __forceinline__ void attend(Sums& o) {
    copy_queries();
    copy_mask_of(shared_.steps[0]);
    copies_of(arguments_.k, 0, shared_.steps[0], products_.first_slot()).ask_all();
    commit_copies();
#pragma unroll 1
    for (int i = 0; shared_.steps[i].exists(); ++i) {
      shared_.steps.extend(lists_of(shared_.tile), i + 1);
      visit(o, shared_.steps[i], shared_.steps[i + 1]);
    }
  }

  __device__ __forceinline__ void copy_queries() {
    const Rows queries = arguments_.q.of(batch(), head());
#pragma unroll 1
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
      Shape::OuterTile::template copy<Shape::kThreads>(
          shared_address(shared_.queries[chunk]), rows_of_chunk<Shape>(queries, chunk), first_row(), thread_index());
  }

  /// Returns the copies of a chunk of the keys or values of a step's tile. Past the last step: zeros, never read.
  __device__ __forceinline__ Copies copies_of(const TensorRows& tensor, int chunk, const TileStep& step,
                                              std::uint32_t slot) const {
    return Copies(slot, chunk, tensor.of(batch(), kv_head()), step.exists() ? step.tile * Shape::kColumns : -1);
  }

  __device__ __forceinline__ void copy_mask_of(const TileStep& step) {
    if (!step.masked()) return;
    const TileMapView& map = arguments_.map;
    copy_mask<Shape::kThreads>(shared_.mask, arguments_.mask,
                               (map.batch == 1 ? 0 : batch()) * map.heads + head() / map.head_ratio, first_row(),
                               step.tile * Shape::kColumns, thread_index());
  }

  __device__ __forceinline__ void visit(Sums& o, const TileStep& now, const TileStep& next) {
    Scores s = {};
    FragmentWords<kUnits, Shape::kOwnInner> masked{};
    bool sees = true;
    const int key_chunks = Products::chunks(arguments_.q.dim), value_chunks = Products::chunks(arguments_.value_dim);
#pragma unroll 1
    for (int chunk = 0; chunk < key_chunks; ++chunk)
      products_.take(
          [&](std::uint32_t slot) {
            const bool last = chunk + 1 == key_chunks;
            return copies_of(last ? arguments_.v : arguments_.k, last ? 0 : chunk + 1, now, slot);
          },
          [&](std::uint32_t keys, Copies& copies) {
            if (chunk == 0 && now.masked()) {
              find_words(masked);
              sees = !masked.hide_all();
            }
            if (sees)
              Products::add_scores(s, shared_address(shared_.queries[chunk]), keys, copies);
            else
              copies.ask_all();
          });
    change_scores(s, arguments_.score,
                  PlaceByRows{batch(), head(), first_row() + Products::own_outer(),
                              now.tile * Shape::kColumns + Products::own_inner()});
    if (now.masked()) hide(s, masked);
    raise_maxima(s, o);
    softmax_.template exponentiate<Shape::kOwnInner / 8>(s, 0, arguments_.score.scale_log2);
    typename Products::Packed p;
    pack<T>(p, s);
    if (arguments_.score.dropout.drops()) drop_scores(p, now.tile);
    products_.store_weights(p, sees);
    products_.add_products(o, value_chunks, [&](int chunk, std::uint32_t slot) {
      const bool last = chunk + 1 == value_chunks;
      if (last) copy_mask_of(next);
      return copies_of(last ? arguments_.k : arguments_.v, last ? 0 : chunk + 1, last ? next : now, slot);
    });
  }

  __device__ __forceinline__ void find_words(FragmentWords<kUnits, Shape::kOwnInner>& masked) const {
    if (arguments_.mask.intervals[0] != nullptr)
      words_from_intervals(masked, shared_.mask, first_row() + Products::own_outer(), Products::own_inner());
    else
      words_from_cells(masked, shared_.mask, Products::own_outer(), Products::own_inner());
  }

  /// Drops probabilities, which still count in the row sums.
  __device__ __forceinline__ void drop_scores(typename Products::Packed& p, int tile) const {
    DroppedWords<kUnits, Shape::kOwnInner> dropped;
    find_dropped(dropped, arguments_.score.dropout, batch(), head(), first_row() + Products::own_outer(),
                 tile * Shape::kColumns + Products::own_inner());
    drop(p, dropped);
  }

  /// Calls body(unit, half, row) for each of the lane's rows; `row` is counted from the block's first.
  template <class Body>
  static __device__ __forceinline__ void for_each_row(const Body& body) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        body(unit, half, Products::own_outer() + 16 * unit + 8 * half + lane_index() / 4);
  }

  /// Shares one number for each of the warp's rows with its sharers, and waits for theirs.
  __device__ __forceinline__ void share(const OfRows& own) {
    for_each_row([&](int unit, int half, int row) {
      if (lane_index() % 4 == 0) shared_.of_sharers[Products::sharer()][row] = own[unit][half];
    });
    sync_threads(1 + Products::group(), 32 * Shape::kSharers);
  }

  /// Raises the running maxima. All sharers come to the same maxima, since they compare the same numbers.
  __device__ __forceinline__ void raise_maxima(const Scores& s, Sums& o) {
    OfRows found, factors;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) Softmax::find_maxima(s[unit], found[unit]);
    share(found);
    for_each_row([&](int unit, int half, int row) {
      float maximum = shared_.of_sharers[0][row];
#pragma unroll
      for (int i = 1; i < Shape::kSharers; ++i) maximum = fmaxf(maximum, shared_.of_sharers[i][row]);
      found[unit][half] = maximum;
    });
    largest_.follow(found);
    if (!__any_sync(~0U, softmax_.any_lags_behind(found, arguments_.score.scale_log2))) return;
    softmax_.raise(found, factors, arguments_.score.scale_log2);
    rescale(o, factors);
  }

  __device__ __forceinline__ void finish_rows(const Sums& o) {
    OfRows factors;
    for_each_row([&](int unit, int half, int) { factors[unit][half] = softmax_.sum(unit, half); });
    share(factors);
    const RowTile tile = shared_.tile;
    float* const lse = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
    for_each_row([&](int unit, int half, int row) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Shape::kSharers; ++i) sum += shared_.of_sharers[i][row];
      const int at = first_row() + row;
      FinishedRow finished = FinishedRow::of(softmax_.maximum(unit, half), sum, arguments_.score.scale_log2);
      if (arguments_.score.sinks.data != nullptr)
        finished.add_sink_of<T>(arguments_.score.sinks, tile.batch, tile.head, at, arguments_.query_length);
      factors[unit][half] = finished.factor * arguments_.score.dropout.scale;
      if (Products::sharer() == 0 && lane_index() % 4 == 0 && at < arguments_.query_length) lse[at] = finished.lse();
    });
    if (Products::sharer() == 0)
      largest_.store(arguments_.max_scores, tile.batch, tile.head, first_row() + Products::own_outer(),
                     arguments_.query_length, arguments_.score.scale_log2 * kLn2);
    T* const out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
    Products::store(o, factors, out, arguments_.o_row, first_row(), arguments_.query_length, arguments_.value_dim);
  }

  WideForwardMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  Products products_;
  Softmax softmax_;
  LargestScoresOf<Shape, kUnits> largest_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    wide_forward_kernel(const __grid_constant__ ForwardArguments arguments) {
  WideForwardBlock<Shape>(shared_memory<WideForwardMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
