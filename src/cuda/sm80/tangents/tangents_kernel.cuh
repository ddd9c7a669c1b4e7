// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/copy_mask.cuh"
#include "cuda/common/store_rows.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/tangents/tangents_shape.cuh"

namespace flashmask::cuda::sm80 {

/// The work of one warp of the tangents of o and lse (docs/tangents.md). It keeps 16 rows of a row tile, whose q and q̇
/// stay in registers. K and K̇, then V and V̇ of the tiles that the row tile visits pass through two pairs of buffers:
/// while one pair is multiplied, the other is filled. Probabilities come from lse, so nothing is rescaled.
template <class Shape>
class TangentsWarp {
  using T = typename Shape::Element;
  using QueryTile = typename Shape::QueryTile;
  using KeyTile = typename Shape::KeyTile;
  using Memory = TangentsMemory<Shape>;
  using Words = FragmentWords<1, Shape::kColumns>;
  using Dropped = DroppedWords<1, Shape::kColumns>;
  using Copies = typename KeyTile::template Copies<Shape::kThreads>;
  static constexpr int kEights = Shape::kColumns / 8, kSteps = Shape::kColumns / 16, kPanels = Shape::kHeadDim / 16,
                       kOutputs = Shape::kValueDim / 8;

  using Scores = float[1][kEights][4];
  using Outputs = float[kOutputs][4];
  using Packed = std::uint32_t[kSteps][1][4];
  using Queries = std::uint32_t[kPanels][4];

 public:
  __device__ __forceinline__ TangentsWarp(Memory& shared, const TangentArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    begin_rows();
    Outputs sums = {};
    if (shared_.steps[0].exists()) attend(sums);
    await_copies<0>();  // also where the row tile visits nothing
    finish_rows(sums);
  }

 private:
  /// Publishes the row tile and its first steps while its queries are being copied.
  __device__ __forceinline__ void begin_rows() {
    const RowTile tile(static_cast<int>(blockIdx.x), arguments_, arguments_.section_heads, arguments_.map.outer_tiles);
    shared_.steps.template begin<Shape::kWarps>(lists_of(tile), [&] {
      copy_queries(shared_.keys, arguments_.q, tile);
      copy_queries(shared_.values, arguments_.tangent_q, tile);
      commit_copies();
      if (thread_index() == 0) publish(tile);
    });
    shared_.steps.extend_by_call(0);
    __syncthreads();
    load_lse();
  }

  __device__ __forceinline__ void copy_queries(const std::uint8_t* to, const TensorRows& from, const RowTile& tile) {
    QueryTile::template copy<Shape::kThreads>(shared_address(to), from.of(tile.batch, tile.head),
                                              tile.row_tile * Shape::kRows, thread_index());
  }

  __device__ __forceinline__ void publish(const RowTile& tile) {
    const int kv_head = tile.head / arguments_.head_ratio;
    shared_.tile = tile;
    shared_.list = TileList<>(arguments_.map, tile.batch, tile.head, tile.row_tile).list;
    shared_.k = arguments_.k.of(tile.batch, kv_head);
    shared_.tangent_k = arguments_.tangent_k.of(tile.batch, kv_head);
    shared_.v = arguments_.v.of(tile.batch, kv_head);
    shared_.tangent_v = arguments_.tangent_v.of(tile.batch, kv_head);
  }

  __device__ __forceinline__ TileLists lists_of(const RowTile& tile) const {
    return {arguments_.map, tile.batch, tile.head, 1, tile.row_tile, false};
  }

  /// Whether scores have tangents; if not, only p v̇ is left.
  __device__ __forceinline__ bool scores_move() const {
    return arguments_.tangent_q.data != nullptr || arguments_.tangent_k.data != nullptr;
  }

  /// Loads lse in powers of two. Rows that see nothing, and padding, need no reference and get +∞, so that their
  /// probabilities are 0.
  __device__ __forceinline__ void load_lse() {
    const RowTile tile = shared_.tile;
    const float* from = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
    missing_ = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + 8 * half;
      const float lse = row < arguments_.query_length ? from[row] : -INFINITY;
      lse_log2_.numbers[0][half] = lse == -INFINITY ? INFINITY : lse * kLog2E;
      if (lse != -INFINITY) missing_ |= 1U << half;
      reference_[half] = moved_[half] = 0;
    }
  }

  __device__ __forceinline__ void attend(Outputs& sums) {
    await_copies<0>();
    __syncthreads();
    load_queries(q_, shared_.keys);
    load_queries(tangent_q_, shared_.values);
    __syncthreads();
    TileStep step = shared_.steps[0];
    ask_mask(step);
    Copies keys = copies_of(shared_.k, shared_.keys, 0, step);
    keys.template ask_rest<0, 1>();
    Copies tangent_keys = copies_of(shared_.tangent_k, shared_.keys, 1, step);
    tangent_keys.template ask_rest<0, 1>();
    commit_copies();
    int i = 0;
#pragma unroll 1
    while (step.masked()) step = visit<true>(sums, i++);
#pragma unroll 1
    while (step.exists()) step = visit<false>(sums, i++);
  }

  __device__ __forceinline__ void load_queries(Queries& to, const std::uint8_t* from) {
    const std::uint32_t rows = shared_address(from) + QueryTile::lane_rows() + QueryTile::step(1, 0) * warp_row();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) load_matrices(to[panel], rows + QueryTile::step(0, panel));
  }

  // Copies.

  /// Returns the copies of a step's tile of `rows` into buffer 0 or 1 of a pair. Past the last step: zeros, never read.
  static __device__ __forceinline__ Copies copies_of(const Rows& rows, const std::uint8_t* pair, int buffer,
                                                     const TileStep& step) {
    return Copies(shared_address(pair) + buffer * Memory::kTileBytes, rows, step.tile * Shape::kColumns,
                  thread_index());
  }

  __device__ __forceinline__ void ask_mask(const TileStep& step) {
    if (step.masked())
      copy_mask<Shape::kThreads>(shared_.mask, arguments_.mask, shared_.list, first_row_of_tile(),
                                 step.tile * Shape::kColumns, thread_index());
  }

  /// Waits for what has been asked for, and until all warps have finished with the pair that is filled next.
  static __device__ __forceinline__ void begin_pair() {
    await_copies<0>();
    __syncthreads();
  }

  // A tile.

  /// Computes tile `i`; returns the step after it.
  template <bool kMasked>
  __device__ __forceinline__ TileStep visit(Outputs& sums, int i) {
    const TileStep now = shared_.steps[i];
    begin_pair();
    Words masked;
    bool sees_something = true;
    if constexpr (kMasked) {
      find_words(masked);
      sees_something = !masked.hide_all();
    }
    Packed weights, p;
    Copies values = copies_of(shared_.v, shared_.values, 0, now);
    if (sees_something) {
      find_weights<kMasked>(weights, p, masked, now, values);
    } else {
      values.template ask_rest<0, 1>();
      Copies tangents = copies_of(shared_.tangent_v, shared_.values, 1, now);
      tangents.template ask_rest<0, 1>();
    }
    commit_copies();

    const TileStep next = shared_.steps[i + 1];
    shared_.steps.extend_by_call(i + 1);
    begin_pair();
    if constexpr (kMasked) ask_mask(next);
    Copies keys = copies_of(shared_.k, shared_.keys, 0, next);
    if (sees_something && scores_move())
      multiply_values(sums, weights, 0, keys);
    else
      keys.template ask_rest<0, 1>();
    Copies tangent_keys = copies_of(shared_.tangent_k, shared_.keys, 1, next);
    if (sees_something && arguments_.tangent_v.data != nullptr)
      multiply_values(sums, p, 1, tangent_keys);
    else
      tangent_keys.template ask_rest<0, 1>();
    commit_copies();
    return next;
  }

  __device__ __forceinline__ void find_words(Words& words) const {
    if (arguments_.mask.intervals[0] != nullptr)
      words_from_intervals(words, shared_.mask, first_row_of_tile() + warp_row(), 0);
    else
      words_from_cells(words, shared_.mask, warp_row(), 0);
  }

  /// Computes the operands of the products with v and v̇, p ∘ (Ṡ − r) and p, issuing the copies of v and v̇ meanwhile.
  template <bool kMasked>
  __device__ __forceinline__ void find_weights(Packed& weights, Packed& p, const Words& masked, const TileStep& now,
                                               Copies& values) {
    [[maybe_unused]] const PlaceByRows place = place_of(now.tile);
    if constexpr (ChangesScores<Shape>) fetch_changes<1, kEights>(arguments_.score, place);
    Scores s, tangents;
    multiply_by_keys(s, tangents, values);
    Copies tangent_values = copies_of(shared_.tangent_v, shared_.values, 1, now);
    if (arguments_.tangent_k.data != nullptr)
      add_products_with_tangent_keys(tangents, tangent_values);
    else
      tangent_values.template ask_rest<0, 1>();
    if constexpr (ChangesScores<Shape>) change_scores(s, arguments_.score, place);
    if constexpr (kMasked) {
      if (!masked.hide_nothing()) {
        hide(s, masked);
        replace<Words>(tangents, masked.words, 0);  // what is hidden may be NaN, which 0 does not clear
      }
    }
    exponentiate(s, arguments_.score.scale_log2, lse_log2_);
    if constexpr (ChangesScores<Shape>)
      for_each_slope(s, arguments_.score, lse_log2_, place,
                     [&](int unit, int eight, int i, float slope) { tangents[unit][eight][i] *= slope; });
    if (__any_sync(~0U, missing_ != 0)) find_references(s, tangents);
    weigh(tangents, s);
    pack<T>(weights, tangents);
    pack<T>(p, s);
    if constexpr (Drops<Shape>) {
      if (arguments_.score.dropout.drops()) drop_weights(weights, p, place);
    }
  }

  /// Computes s = q kᵀ and tangents = q̇ kᵀ, and issues parts of copies between products.
  __device__ __forceinline__ void multiply_by_keys(Scores& s, Scores& tangents, Copies& next) {
    const std::uint32_t columns = shared_address(shared_.keys) + KeyTile::lane_columns();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        std::uint32_t k[4];
        load_matrices(k, columns + KeyTile::step(16 * pair, panel));
        multiply<T>(s[0][2 * pair], q_[panel], k[0], k[1], panel == 0);
        multiply<T>(s[0][2 * pair + 1], q_[panel], k[2], k[3], panel == 0);
        multiply<T>(tangents[0][2 * pair], tangent_q_[panel], k[0], k[1], panel == 0);
        multiply<T>(tangents[0][2 * pair + 1], tangent_q_[panel], k[2], k[3], panel == 0);
      }
      next.template ask_part<kPanels>(panel);
    }
  }

  /// Adds q k̇ᵀ to the tangents of the scores, issuing copies in the same way.
  __device__ __forceinline__ void add_products_with_tangent_keys(Scores& tangents, Copies& next) {
    const std::uint32_t columns = shared_address(shared_.keys) + Memory::kTileBytes + KeyTile::lane_columns();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int pair = 0; pair < kEights / 2; ++pair) {
        std::uint32_t k[4];
        load_matrices(k, columns + KeyTile::step(16 * pair, panel));
        multiply<T>(tangents[0][2 * pair], q_[panel], k[0], k[1]);
        multiply<T>(tangents[0][2 * pair + 1], q_[panel], k[2], k[3]);
      }
      next.template ask_part<kPanels>(panel);
    }
  }

  /// Sets the reference of rows that have none and see keys of this tile: the mean of their Ṡ in it.
  __device__ __forceinline__ void find_references(const Scores& p, const Scores& tangents) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0, mean = 0;
#pragma unroll
      for (int at = 0; at < 2 * kEights; ++at) {
        const float own = p[0][at / 2][2 * half + at % 2];
        sum += own;
        mean = fmaf(own, tangents[0][at / 2][2 * half + at % 2], mean);
      }
      sum = sum_of_quad(sum);
      mean = sum_of_quad(mean);
      if ((missing_ >> half & 1) != 0 && sum > 0) {
        reference_[half] = mean / sum * arguments_.score.scale;
        missing_ &= ~(1U << half);
      }
    }
  }

  static __device__ __forceinline__ float sum_of_quad(float x) {
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
  }

  /// Turns Ṡ, still without the softmax scale, into p ∘ (Ṡ − r), and adds it to the lane's sums.
  __device__ __forceinline__ void weigh(Scores& tangents, const Scores& p) {
    for_each_score<1, kEights>([&](int unit, int eight, int i) {
      float& own = tangents[unit][eight][i];
      own = p[unit][eight][i] * fmaf(own, arguments_.score.scale, -reference_[i / 2]);
      moved_[i / 2] += own;
    });
  }

  /// Drops what the forward dropped; it still counts in the sums of the rows.
  __device__ __forceinline__ void drop_weights(Packed& weights, Packed& p, const PlaceByRows& place) const {
    Dropped dropped;
    find_dropped(dropped, arguments_.score.dropout, place.batch, place.head, place.first_row, place.first_column);
    drop(weights, dropped);
    drop(p, dropped);
  }

  /// Computes sums += weights v, or p v̇, whose tile is in buffer 0 or 1 of the pair, and issues copies between
  /// products.
  __device__ __forceinline__ void multiply_values(Outputs& sums, const Packed& weights, int buffer, Copies& next) {
    const std::uint32_t from = shared_address(shared_.values) + buffer * Memory::kTileBytes + KeyTile::lane_rows();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int pair = 0; pair < kOutputs / 2; ++pair) {
        std::uint32_t v[4];
        load_matrices_transposed(v, from + KeyTile::step(16 * step, pair));
        multiply<T>(sums[2 * pair], weights[step][0], v[0], v[1]);
        multiply<T>(sums[2 * pair + 1], weights[step][0], v[2], v[3]);
      }
      next.template ask_part<kSteps>(step);
    }
  }

  // Results.

  __device__ __forceinline__ void finish_rows(Outputs& sums) {
    const RowTile tile = shared_.tile;
    float* lse =
        arguments_.tangent_lse + tile.batch * arguments_.tangent_lse_batch + tile.head * arguments_.tangent_lse_head;
    float kept_scale = 1;
    if constexpr (Drops<Shape>) kept_scale = arguments_.score.dropout.scale;
    const Rows o = arguments_.o.of(tile.batch, tile.head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + 8 * half;
      const bool exists = row < arguments_.query_length;
      const float moved = sum_of_quad(moved_[half]) - reference_[half] * sink_probability(tile, row, half);
      if (lane_index() % 4 == 0 && exists) lse[row] = moved + reference_[half];
      subtract_output(sums, half, kept_scale, moved, exists ? o.first + row * o.stride : nullptr, o.dim);
    }
    store_rows(reinterpret_cast<float(&)[4 * kOutputs]>(sums), {1, 1},
               arguments_.tangent_o.of<T>(tile.batch, tile.head), arguments_.tangent_o.row, first_row(),
               arguments_.query_length, arguments_.v.dim);
  }

  /// Returns the probability of a row's sink, 0 where it has none.
  __device__ __forceinline__ float sink_probability(const RowTile& tile, int row, int half) const {
    const SinkView& sinks = arguments_.score.sinks;
    if (sinks.data == nullptr) return 0;
    const float sink = sinks.at<T>(tile.batch, tile.head, min(row, arguments_.query_length - 1));
    return exp2_approximate(fmaf(sink, kLog2E, -lse_log2_.numbers[0][half]));
  }

  /// Turns the sums of a row into its results, sums · kept_scale − moved · o. `o`: the row; nullptr: there is none.
  static __device__ __forceinline__ void subtract_output(Outputs& sums, int half, float kept_scale, float moved,
                                                         const std::uint16_t* o, int dim) {
#pragma unroll
    for (int eight = 0; eight < kOutputs; ++eight) {
      const int column = 8 * eight + lane_index() % 4 * 2;
      float2 own{0, 0};
      if (o != nullptr && column < dim) own = unpack<T>(*reinterpret_cast<const std::uint32_t*>(o + column));
      float* const pair = &sums[eight][2 * half];
      pair[0] = fmaf(pair[0], kept_scale, -moved * own.x);
      pair[1] = fmaf(pair[1], kept_scale, -moved * own.y);
    }
  }

  __device__ __forceinline__ PlaceByRows place_of(int tile) const {
    return {shared_.tile.batch, shared_.tile.head, first_row_of_tile() + warp_row(), tile * Shape::kColumns};
  }

  /// Returns the warp's first row in the tile.
  static __device__ __forceinline__ int warp_row() { return static_cast<int>(thread_index()) / 32 * Shape::kWarpRows; }
  __device__ __forceinline__ int first_row_of_tile() const { return shared_.tile.row_tile * Shape::kRows; }
  /// Returns the first of the lane's two rows; the other is 8 further on.
  __device__ __forceinline__ int first_row() const {
    return first_row_of_tile() + warp_row() + static_cast<int>(lane_index()) / 4;
  }

  Memory& shared_;
  const TangentArguments& arguments_;
  Queries q_, tangent_q_;
  RowNumbers<1> lse_log2_;
  float reference_[2];  // what is subtracted from each Ṡ of a row
  float moved_[2];      // Σ p (Ṡ − r) of the lane's scores
  unsigned missing_;    // which of the lane's rows have no reference yet
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    tangents_kernel(const __grid_constant__ TangentArguments arguments) {
  TangentsWarp<Shape>(shared_memory<TangentsMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
