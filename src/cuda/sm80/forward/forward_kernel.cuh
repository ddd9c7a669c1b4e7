// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/common/copy_mask.cuh"
#include "cuda/common/store_rows.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/largest_scores.cuh"
#include "cuda/scores/running_softmax.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/forward/forward_shape.cuh"

namespace flashmask::cuda::sm80 {

/// The work of one warp of the forward. It keeps 16 or 32 rows of a row tile; K and V of the tiles that the row tile
/// visits pass through a ring that all warps fill, K V K V …. A step waits for one of them, synchronizes with the other
/// warps, issues the copies of what is needed kSlots − 1 steps later, and multiplies.
template <class Shape>
class ForwardWarp {
  using T = typename Shape::Element;
  using QueryTile = typename Shape::QueryTile;
  using KeyTile = typename Shape::KeyTile;
  using ValueTile = typename Shape::ValueTile;
  using Words = FragmentWords<Shape::kUnits, Shape::kColumns>;
  using Memory = ForwardMemory<Shape>;
  static constexpr int kUnits = Shape::kUnits, kEights = Shape::kColumns / 8, kSteps = Shape::kColumns / 16,
                       kPanels = Shape::kHeadDim / 16, kOutputs = Shape::kValueDim / 8;
  static constexpr int kHeld = Shape::kHeld;
  static constexpr bool kStoresSeed = Drops<Shape> && Shape::kHeadDim == 256;  // registers cannot hold it
  /// Whether exponentials are computed between products with V, not before the barrier ahead of them. With two buffers,
  /// the copies that are issued after that barrier would arrive late.
  static constexpr bool kExponentiatesLate = Shape::kSlots == 3;
  static constexpr std::uint32_t kRingBytes = Shape::kSlots * Shape::kSlotBytes;

  enum class Of { keys, values };
  using Scores = float[kUnits][kEights][4];
  using Outputs = float[kUnits][kOutputs][4];
  using Packed = std::uint32_t[kUnits][kSteps][4];
  using Dropped = DroppedWords<kUnits, Shape::kColumns>;
  using Softmax = RunningSoftmax<kUnits>;
  using OwnBias = typename BiasedForwardMemory<Shape>::OwnBias;

 public:
  __device__ __forceinline__ ForwardWarp(Memory& shared, const ForwardArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run(int item) {
    begin_rows(item);
    Outputs o;
    clear(o);
    if (shared_.steps[0].exists()) attend(o);
    await_copies<0>();  // also where the row tile visits nothing
    finish_rows(o);
  }

 private:
  /// Publishes the row tile and its first steps while its queries are being copied.
  __device__ __forceinline__ void begin_rows(int item) {
    const RowTile tile(item, arguments_, arguments_.section_heads, arguments_.map.outer_tiles);
    shared_.steps.template begin<Shape::kWarps>(lists_of(tile), [&] {
      QueryTile::template copy<Shape::kThreads>(queries(), arguments_.q.of(tile.batch, tile.head),
                                                tile.row_tile * Shape::kRows, thread_index());
      commit_copies();
      publish(tile);
    });
    extend(0);
    __syncthreads();
  }

  __device__ __forceinline__ void extend(int begun) {
    if constexpr (Shape::kHeadDim == 256)
      shared_.steps.extend(lists_of(shared_.tile), begun);
    else
      shared_.steps.extend_by_call(begun);
  }

  __device__ __forceinline__ void publish(const RowTile& tile) {
    if constexpr (kStoresSeed) {
      const DropoutSeed seed(arguments_.score.dropout, tile.batch, tile.head);  // by all threads, since warps shuffle
      if (thread_index() == 0) shared_.seed.store(seed, arguments_.score.dropout, tile.row_tile * Shape::kRows);
    }
    if (thread_index() != 0) return;
    if constexpr (Shape::kShort) shared_.next_item = next_item();
    const int kv_head = tile.head / arguments_.head_ratio;
    shared_.tile = tile;
    shared_.list = TileList<>(arguments_.map, tile.batch, tile.head, tile.row_tile).list;
    shared_.keys = arguments_.k.of(tile.batch, kv_head);
    shared_.values = arguments_.v.of(tile.batch, kv_head);
  }

  /// Returns the block's next item; past the last where a block takes only one.
  __device__ __forceinline__ int next_item() const {
    if (arguments_.next_item == nullptr) return arguments_.items;
    return static_cast<int>(gridDim.x) + atomicAdd(arguments_.next_item, 1);
  }

  __device__ __forceinline__ TileLists lists_of(const RowTile& tile) const {
    return {arguments_.map, tile.batch, tile.head, 1, tile.row_tile, false};
  }

  __device__ __forceinline__ void clear(Outputs& o) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < 4 * kOutputs; ++i) o[unit][i / 4][i % 4] = 0;
    }
    softmax_.clear();
    largest_.clear();
  }

  __device__ __forceinline__ void attend(Outputs& o) {
    read_ = 0;
    if constexpr (Shape::kQueries == Queries::staged) {
      await_copies<0>();
      __syncthreads();
      load_queries();
      __syncthreads();
    }
    begin_ring();
    if constexpr (Shape::kQueries == Queries::registers) {
      await_copies<Shape::kSlots - 1>();
      __syncthreads();
      load_queries();
    }
    int i = 0;
    TileStep step = shared_.steps[0];
#pragma unroll 1
    while (step.masked()) step = visit<true>(o, i++);
#pragma unroll 1
    while (step.exists()) step = visit<false>(o, i++);
  }

  // The ring.

  __device__ __forceinline__ void begin_ring() {
    ask_keys<true>(slot(0), shared_.steps[0], 0).template ask_rest<0, 1>();
    if constexpr (StagesBias<Shape>) ask_bias(shared_.steps[0]);
    commit_copies();
    if constexpr (Shape::kSlots == 3) {
      ask_values(slot(1), shared_.steps[0]).template ask_rest<0, 1>();
      commit_copies();
    }
  }

  __device__ __forceinline__ std::uint32_t slot(int number) const {
    return shared_address(shared_.ring) + number * Shape::kSlotBytes;
  }

  /// Returns the buffer that the last step read and that all warps have finished with; with two buffers, the one that
  /// this step does not read.
  template <Of kStep>
  __device__ __forceinline__ std::uint32_t left_slot() const {
    if constexpr (Shape::kSlots == 2) return slot(kStep == Of::keys ? 1 : 0);
    return shared_address(shared_.ring) + (read_ == 0 ? kRingBytes : read_) - Shape::kSlotBytes;
  }

  /// Waits for what a step reads, and until all warps have finished with what the last one read.
  __device__ __forceinline__ void begin_step() const {
    await_copies<Shape::kSlots - 2>();
    __syncthreads();
  }
  /// Each starts a step of tile `i` and returns the copies that the step must issue: of what is needed kSlots − 1 steps
  /// later, into the buffer that the last step read.
  template <bool kMasked>
  __device__ __forceinline__ auto next_of_keys_step(int i) {
    const TileStep step = shared_.steps[Shape::kSlots == 3 ? i + 1 : i];
    if constexpr (Shape::kSlots == 3) extend(i + 1);
    begin_step();
    if constexpr (Shape::kSlots == 3)
      return ask_keys<kMasked>(left_slot<Of::keys>(), step, i + 1);
    else
      return ask_values(left_slot<Of::keys>(), step);
  }
  template <bool kMasked>
  __device__ __forceinline__ auto next_of_values_step(int i) {
    const TileStep step = shared_.steps[i + 1];
    // With two buffers extend() is called here: its branch keeps the exponentials before the barrier, where copies do
    // not wait for them.
    if constexpr (Shape::kSlots == 2) extend(i + 1);
    begin_step();
    if constexpr (Shape::kSlots == 3)
      return ask_values(left_slot<Of::values>(), step);
    else
      return ask_keys<kMasked>(left_slot<Of::values>(), step, i + 1);
  }

  /// Returns the buffer that a step reads, and advances to the next.
  template <Of kStep>
  __device__ __forceinline__ std::uint32_t advance() {
    if constexpr (Shape::kSlots == 2) return slot(kStep == Of::keys ? 0 : 1);
    const std::uint32_t read = read_;
    read_ = read + Shape::kSlotBytes == kRingBytes ? 0 : read + Shape::kSlotBytes;
    return shared_address(shared_.ring) + read;
  }

  /// Issues the copies of the mask of tile `i`, if it has one, and returns those of its keys. kMayBeMasked: whether it
  /// may have a mask. Past the last tile: zeros, never read.
  template <bool kMayBeMasked>
  __device__ __forceinline__ auto ask_keys(std::uint32_t to, const TileStep& step, int i) {
    if (kMayBeMasked && step.masked())
      copy_mask<Shape::kThreads>(shared_.masks[i & 1], arguments_.mask, shared_.list, first_row_of_tile(),
                                 step.tile * Shape::kColumns, thread_index());
    return typename KeyTile::template Copies<Shape::kThreads>(to, shared_.keys, step.tile * Shape::kColumns,
                                                              thread_index());
  }
  __device__ __forceinline__ auto ask_values(std::uint32_t to, const TileStep& step) {
    return typename ValueTile::template Copies<Shape::kThreads>(to, shared_.values, step.tile * Shape::kColumns,
                                                                thread_index());
  }

  // A bias, of which each warp copies its own values.

  __device__ __forceinline__ bool stages_bias() const { return comes_in_units<T>(arguments_.score.bias); }
  __device__ __forceinline__ std::uint32_t own_bias() const {
    return shared_address(static_cast<const BiasedForwardMemory<Shape>&>(shared_).bias[warp()]);
  }
  __device__ __forceinline__ void ask_bias(const TileStep& step) const {
    if (!stages_bias() || !step.exists()) return;
    OwnBias::copy(own_bias(), arguments_.score.bias, shared_.tile.batch, shared_.tile.head,
                  first_row_of_tile() + warp_row(), step.tile * Shape::kColumns);
  }
  /// Issues the copies for the tile after tile `i`, whose own have arrived by then and are no longer read.
  __device__ __forceinline__ void replace_bias(int i) const {
    await_copies<1>();
    __syncwarp();
    ask_bias(shared_.steps[i + 1]);
  }
  /// Changes the scores of tile `i`.
  __device__ __forceinline__ void change(Scores& s, int i) const {
    if constexpr (StagesBias<Shape>) {
      if (stages_bias()) {
        if (arguments_.score.to_exponent != 0) cap(s, arguments_.score.to_exponent);
        await_copies<1>();  // all but the keys of the next tile
        __syncwarp();
        OwnBias::add(s, arguments_.score.bias, own_bias());
        return replace_bias(i);
      }
    }
    change_scores(s, arguments_.score, place_of(shared_.steps[i].tile));
  }

  // Queries.

  __device__ __forceinline__ std::uint32_t queries() const {
    if constexpr (Shape::kQueries == Queries::staged) return slot(0) + kRingBytes - Shape::kHeldBytes;
    return shared_address(shared_.queries);
  }

  __device__ __forceinline__ std::uint32_t own_queries() const {
    return queries() + QueryTile::lane_rows() + QueryTile::step(1, 0) * warp_row();
  }

  __device__ __forceinline__ void load_queries() {
    const std::uint32_t from = own_queries();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int panel = 0; panel < kHeld; ++panel)
        load_matrices(q_[unit][panel], from + QueryTile::step(16 * unit, panel));
  }

  // A tile.

  /// Computes tile `i`; returns the step after it.
  template <bool kMasked>
  __device__ __forceinline__ TileStep visit(Outputs& o, int i) {
    auto next = next_of_keys_step<kMasked>(i);
    const std::uint32_t keys = advance<Of::keys>();
    Scores s;
    Words masked;
    if constexpr (StagesBias<Shape>) {
      if (!stages_bias()) fetch_changes<kUnits, kEights>(arguments_.score, place_of(shared_.steps[i].tile));
    } else if constexpr (ChangesScores<Shape> && !kStoresSeed) {
      fetch_changes<kUnits, kEights>(arguments_.score, place_of(shared_.steps[i].tile));
    }
    clear_scores(s);
    add_scores<0, 1>(s, keys, next);
    if constexpr (kMasked) {
      // After the first products, which run meanwhile.
      find_words(masked, i);
      if (masked.hide_all()) return pass(next, i);
    }
    add_scores<1, kPanels>(s, keys, next);
    commit_copies();
    if constexpr (ChangesScores<Shape>) change(s, i);
    if constexpr (Changes<Shape>)
      change_tile<typename Shape::Change>(s, arguments_.change, arguments_.score.bias, place_of(shared_.steps[i].tile));
    if constexpr (kMasked) {
      if (!masked.hide_nothing()) hide(s, masked);
    }
    raise_maxima(s, o);
    Packed p;
    if constexpr (!kExponentiatesLate) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) weigh(p, s, step);
    }
    auto behind_next = next_of_values_step<kMasked>(i);
    Dropped dropped;
    if constexpr (Drops<Shape>) find_dropped_scores(dropped, shared_.steps[i].tile);
    multiply_values(o, p, advance<Of::values>(), behind_next, [&](int step) {
      if constexpr (kExponentiatesLate) weigh(p, s, step);
      if constexpr (Drops<Shape>) drop_scores(p, dropped, step);
    });
    commit_copies();
    return shared_.steps[i + 1];
  }

  /// Passes over a tile of which the warp sees nothing: only joins the barrier, and issues the warp's part of the
  /// copies that the others need.
  template <class Copies>
  __device__ __forceinline__ TileStep pass(Copies& next, int i) {
    next.template ask_rest<1, kPanels>();
    commit_copies();
    if constexpr (StagesBias<Shape>) {
      if (stages_bias()) replace_bias(i);
    }
    auto behind_next = next_of_values_step<true>(i);
    behind_next.template ask_rest<0, 1>();
    commit_copies();
    advance<Of::values>();
    return shared_.steps[i + 1];
  }

  __device__ __forceinline__ void find_words(Words& words, int i) const {
    const auto& mask = shared_.masks[i & 1];
    if (arguments_.mask.intervals[0] != nullptr) {
      words_from_intervals(words, mask, first_row_of_tile() + warp_row(), 0);
    } else {
      words_from_cells(words, mask, warp_row(), 0);
    }
  }

  static __device__ __forceinline__ void clear_scores(Scores& s) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4 * kEights; ++i) s[unit][i / 4][i % 4] = 0;
  }

  /// Computes s += q kᵀ over panels kFirst … kEnd − 1, issuing parts of the copies of another tile between products.
  template <int kFirst, int kEnd, class Copies>
  __device__ __forceinline__ void add_scores(Scores& s, std::uint32_t keys, Copies& next) {
    const std::uint32_t rows = own_queries(), columns = keys + KeyTile::lane_columns();
#pragma unroll
    for (int panel = kFirst; panel < kEnd; ++panel) {
      const int place = min(panel, kHeld);
      if (panel >= kHeld) {
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit)
          load_matrices(q_[unit][place], rows + QueryTile::step(16 * unit, panel));
      }
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        std::uint32_t k[4];
        load_matrices(k, columns + KeyTile::step(16 * pair, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          const auto& q = q_[unit][place];
          multiply<T>(s[unit][2 * pair], q, k[0], k[1]);
          multiply<T>(s[unit][2 * pair + 1], q, k[2], k[3]);
        }
      }
      next.template ask_part<kPanels>(panel);
    }
  }

  /// Computes o += p v, issuing copies in the same way. finish(step) is called before a step's products, to complete p
  /// for its 16 columns.
  template <class Copies, class Finish>
  __device__ __forceinline__ void multiply_values(Outputs& o, const Packed& p, std::uint32_t values, Copies& next,
                                                  const Finish& finish) {
    const std::uint32_t from = values + ValueTile::lane_rows();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      finish(step);
#pragma unroll
      for (int pair = 0; pair < kOutputs / 2; ++pair) {
        std::uint32_t v[4];
        load_matrices_transposed(v, from + ValueTile::step(16 * step, pair));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(o[unit][2 * pair], p[unit][step], v[0], v[1]);
          multiply<T>(o[unit][2 * pair + 1], p[unit][step], v[2], v[3]);
        }
      }
      next.template ask_part<kSteps>(step);
    }
  }

  // Softmax.

  /// Raises the running maxima of the warp's rows once one lags behind.
  __device__ __forceinline__ void raise_maxima(const Scores& s, Outputs& o) {
    typename Softmax::OfRows found, factors;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) Softmax::find_maxima(s[unit], found[unit]);
    largest_.follow(found);
    if (!__any_sync(~0U, softmax_.any_lags_behind(found, arguments_.score.scale_log2))) return;
    softmax_.raise(found, factors, arguments_.score.scale_log2);
    rescale(o, factors);
  }

  /// Computes the probabilities of a step's 16 columns and packs them: packed accumulators of one product are the
  /// operand of the next.
  __device__ __forceinline__ void weigh(Packed& p, Scores& s, int step) {
    softmax_.template exponentiate<2>(s, 2 * step, arguments_.score.scale_log2);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& pair = s[unit][2 * step + i / 2];
        p[unit][step][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
  }

  using Place = std::conditional_t<!Shape::kTakesBias, PlaceWithoutBias,
                                   std::conditional_t<Shape::kTakesEights, PlaceByRows, PlaceOfPairs>>;
  __device__ __forceinline__ Place place_of(int tile) const {
    const PlaceByRows place{shared_.tile.batch, shared_.tile.head, first_row_of_tile() + warp_row(),
                            tile * Shape::kColumns};
    return Place(place);
  }

  __device__ __forceinline__ void find_dropped_scores(Dropped& dropped, int tile) const {
    if constexpr (KeepsMaxScores<Shape>) {
      dropped = {};
      if (!arguments_.score.dropout.drops()) return;
    }
    const int first_row = first_row_of_tile() + warp_row(), first_column = tile * Shape::kColumns;
    if constexpr (kStoresSeed)
      find_dropped(dropped, arguments_.score.dropout, shared_.seed, first_row, first_column);
    else
      find_dropped(dropped, arguments_.score.dropout, shared_.tile.batch, shared_.tile.head, first_row, first_column);
  }

  /// Drops probabilities, which still count in the row sums.
  static __device__ __forceinline__ void drop_scores(Packed& p, const Dropped& dropped, int step) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) drop(p[unit][step], dropped, unit, step);
  }

  // Results.

  __device__ __forceinline__ void finish_rows(Outputs& o) {
    const RowTile tile = shared_.tile;
    T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
    float* lse = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int first = first_row_of_tile() + warp_row() + 16 * unit + lane_index() / 4;
      float factor[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        FinishedRow finished =
            FinishedRow::of(softmax_.maximum(unit, row), softmax_.sum(unit, row), arguments_.score.scale_log2);
        if (arguments_.score.sinks.data != nullptr)
          finished.add_sink_of<T>(arguments_.score.sinks, tile.batch, tile.head, first + 8 * row,
                                  arguments_.query_length);
        factor[row] = finished.factor;
        if constexpr (Drops<Shape>) factor[row] *= arguments_.score.dropout.scale;
        if (lane_index() % 4 == 0 && first + 8 * row < arguments_.query_length) lse[first + 8 * row] = finished.lse();
      }
      store_rows(reinterpret_cast<float(&)[4 * kOutputs]>(o[unit]), factor, out, arguments_.o_row, first,
                 arguments_.query_length, arguments_.value_dim);
    }
    largest_.store(arguments_.max_scores, tile.batch, tile.head, first_row_of_tile() + warp_row(),
                   arguments_.query_length, arguments_.score.scale_log2 * kLn2);
  }

  static __device__ __forceinline__ unsigned warp() { return thread_index() / 32; }
  /// Returns the warp's first row in the tile.
  static __device__ __forceinline__ int warp_row() { return static_cast<int>(warp()) * Shape::kWarpRows; }
  __device__ __forceinline__ int first_row_of_tile() const { return shared_.tile.row_tile * Shape::kRows; }

  Memory& shared_;
  const ForwardArguments& arguments_;
  std::uint32_t read_;  // where in the ring the buffer that the next step reads begins
  std::uint32_t q_[kUnits][kHeld < kPanels ? kHeld + 1 : kHeld][4];  // held panels, then one that is not
  Softmax softmax_;
  LargestScoresOf<Shape, kUnits> largest_;
};

/// A block takes one item. With tiles for short rows, where a launch has a counter of items, it takes items until none
/// are left: many blocks that only learn that the other launch has the work would take long.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    forward_kernel(const __grid_constant__ ForwardArguments arguments) {
  if (!arguments.choice.has_the_work()) return;
  auto& shared = shared_memory<ForwardMemory<Shape>>();
  for (int item = static_cast<int>(blockIdx.x);;) {
    ForwardWarp<Shape>(shared, arguments).run(item);
    if constexpr (!Shape::kShort) return;
    item = shared.next_item;
    if (item >= arguments.items) return;
    __syncthreads();  // all warps have finished with the memory of the last item
  }
}

}  // namespace flashmask::cuda::sm80
