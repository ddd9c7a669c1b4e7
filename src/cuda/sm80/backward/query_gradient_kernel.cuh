// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/copy_mask.cuh"
#include "cuda/common/sections.h"
#include "cuda/common/store_rows.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/views/change.h"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda::sm80 {

struct QueryGradientArguments : RowArguments {
  TensorRows q, k, v, grad_o;
  OutputRows grad_q;
  BackwardStatistics statistics;
  int head_dim;
  ChangeOperands change;  // for kernels that are compiled with a change
};

/// kUnits: a warp takes 16 · kUnits rows. kSharers warps take the same rows, and each 64 / kSharers columns of a tile,
/// 32 at once. kStages: buffers of k and v.
template <class T, int kHeadDim_, int kUnits_, int kSharers_, int kStages_, int kBlocks_>
struct QueryGradientShape {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_, kUnits = kUnits_, kSharers = kSharers_, kStages = kStages_,
                       kBlocks = kBlocks_;
  static constexpr int kGroups = 4, kRows = 16 * kUnits * kGroups, kColumns = 64, kScoreColumns = 32;
  static constexpr int kWarps = kGroups * kSharers, kThreads = 32 * kWarps;
  static constexpr int kOwnRows = 16 * kUnits, kOwnColumns = kColumns / kSharers, kOwnDims = kHeadDim / kSharers;
  using RowTile = SharedTile<kRows, kHeadDim>;
  using KeyTile = SharedTile<kColumns, kHeadDim>;
  static_assert(kOwnColumns % kScoreColumns == 0);
};

template <class Shape>
struct QueryGradientMemory {
  struct Item {
    int batch, head, row_tile;
  };
  alignas(128) std::uint8_t q[Shape::RowTile::kBytes];
  alignas(128) std::uint8_t grad_o[Shape::RowTile::kBytes];
  alignas(128) std::uint8_t k[Shape::kStages][Shape::KeyTile::kBytes];  // at the end, with v, sums of sharers
  alignas(128) std::uint8_t v[Shape::kStages][Shape::KeyTile::kBytes];
  alignas(16) float lse_log2[Shape::kRows];
  alignas(16) float dot[Shape::kRows];
  SharedMask<Shape::kRows, Shape::kColumns> mask[Shape::kStages];
  Item item;
  TileSteps steps;
};

/// The gradient of q alone: each row tile is summed as a whole, in a fixed order of additions. A block takes a row tile
/// of one head through the keys that it sees: it recomputes p from the scores, computes gradients of p from grad_o vᵀ,
/// and sums grad_s k in registers.
template <class Shape>
class QueryGradientBlock {
  using T = typename Shape::Element;
  using RowTile = typename Shape::RowTile;
  using KeyTile = typename Shape::KeyTile;
  static constexpr int kUnits = Shape::kUnits, kEights = Shape::kScoreColumns / 8, kSteps = Shape::kScoreColumns / 16,
                       kPanels = Shape::kHeadDim / 16;
  using Scores = float[kUnits][kEights][4];
  using Packed = std::uint32_t[kSteps][kUnits][4];
  using Gradients = float[kUnits][2 * kPanels][4];

 public:
  __device__ __forceinline__ QueryGradientBlock(QueryGradientMemory<Shape>& shared,
                                                const QueryGradientArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    const auto own = item();
    if (thread_index() == 0) shared_.item = own;
    shared_.steps.template begin<Shape::kWarps>(lists_of(own), [] {});
    shared_.steps.extend(lists_of(own), 0);
    __syncthreads();
    Gradients grad_q = {};
    if (shared_.steps[0].exists()) attend(grad_q);
    if constexpr (Shape::kSharers > 1) join(grad_q);
    store(grad_q);
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  static __device__ __forceinline__ int sharer() { return warp() % Shape::kSharers; }
  static __device__ __forceinline__ int own_row() { return warp() / Shape::kSharers * Shape::kOwnRows; }

  __device__ __forceinline__ int batch() const { return shared_.item.batch; }
  __device__ __forceinline__ int head() const { return shared_.item.head; }
  __device__ __forceinline__ int first_row() const { return shared_.item.row_tile * Shape::kRows; }
  __device__ __forceinline__ int kv_head() const { return head() / arguments_.head_ratio; }
  __device__ __forceinline__ std::int64_t flat_head() const {
    return static_cast<std::int64_t>(batch()) * arguments_.query_heads + head();
  }

  /// Returns the block's item in the order of Sections, but the last rows first: with causal masks they take longest.
  __device__ __forceinline__ typename QueryGradientMemory<Shape>::Item item() const {
    const Sections sections{arguments_.batch * arguments_.query_heads, arguments_.section_heads,
                            arguments_.map.outer_tiles};
    const SectionTile tile = sections.tile(static_cast<int>(blockIdx.x));
    return {tile.head / arguments_.query_heads, tile.head % arguments_.query_heads, sections.tiles - 1 - tile.tile};
  }

  __device__ __forceinline__ TileLists lists_of(const typename QueryGradientMemory<Shape>::Item& item) const {
    return {arguments_.map, item.batch, item.head, 1, item.row_tile, false};
  }

  __device__ __forceinline__ void attend(Gradients& grad_q) {
    copy_rows();
    copy_step(shared_.steps[0], 0);
    commit_copies();
#pragma unroll 1
    for (int i = 0;; ++i) {
      await_copies<0>();
      __syncthreads();
      const TileStep now = shared_.steps[i], next = shared_.steps[i + 1];
      if (Shape::kStages == 2 && next.exists()) copy_mask_of(next, i + 1);
      shared_.steps.extend(lists_of(shared_.item), i + 1);
      visit(grad_q, now, next, i);
      if (!next.exists()) break;
      if constexpr (Shape::kStages == 1) {
        __syncthreads();
        copy_step(next, i + 1);
        commit_copies();
      }
    }
  }

  static __device__ __forceinline__ int own_column() { return sharer() * Shape::kOwnColumns; }
  __device__ __forceinline__ std::uint8_t* keys(int i) const { return shared_.k[i % Shape::kStages]; }
  __device__ __forceinline__ std::uint8_t* values(int i) const { return shared_.v[i % Shape::kStages]; }

  __device__ __forceinline__ void copy_rows() {
    const QueryGradientArguments& from = arguments_;
    RowTile::template copy<Shape::kThreads>(shared_address(shared_.q), from.q.of(batch(), head()), first_row(),
                                            thread_index());
    RowTile::template copy<Shape::kThreads>(shared_address(shared_.grad_o), from.grad_o.of(batch(), head()),
                                            first_row(), thread_index());
    constexpr int kPieces = Shape::kRows / 4;
    const int thread = static_cast<int>(thread_index()), piece = thread % kPieces * 4;
    const std::int64_t at = flat_head() * from.statistics.padded + first_row() + piece;
    if (thread < kPieces)
      copy_16(shared_address(shared_.lse_log2 + piece), from.statistics.lse_log2 + at, true);
    else if (thread < 2 * kPieces)
      copy_16(shared_address(shared_.dot + piece), from.statistics.dot + at, true);
  }

  using Copies = typename KeyTile::template Copies<Shape::kThreads, Rows>;
  /// Returns the copies of the keys or values of a step's tile. Past the last step: zeros, never read.
  __device__ __forceinline__ Copies copies_of(const TensorRows& tensor, const std::uint8_t* to,
                                              const TileStep& step) const {
    return Copies(shared_address(to), tensor.of(batch(), kv_head()), first_key(step), thread_index());
  }
  static __device__ __forceinline__ int first_key(const TileStep& step) {
    return step.exists() ? step.tile * Shape::kColumns : -1;
  }

  /// Issues all copies that step i needs.
  __device__ __forceinline__ void copy_step(const TileStep& step, int i) {
    copies_of(arguments_.k, keys(i), step).template ask_rest<0, 1>();
    copies_of(arguments_.v, values(i), step).template ask_rest<0, 1>();
    copy_mask_of(step, i);
  }

  __device__ __forceinline__ void copy_mask_of(const TileStep& step, int i) {
    if (!step.masked()) return;
    const QueryGradientArguments& from = arguments_;
    const TileMapView& map = from.map;
    copy_mask<Shape::kThreads>(shared_.mask[i % Shape::kStages], from.mask,
                               (map.batch == 1 ? 0 : batch()) * map.heads + head() / map.head_ratio, first_row(),
                               first_key(step), thread_index());
  }

  /// Computes step i, and issues the copies of the next tile between products.
  __device__ __forceinline__ void visit(Gradients& grad_q, const TileStep& now, const TileStep& next, int i) {
    constexpr int kTimes = Shape::kOwnColumns / Shape::kScoreColumns;
#pragma unroll
    for (int time = 0; time < kTimes; ++time) {
      const int column = own_column() + time * Shape::kScoreColumns;
      const bool asks = Shape::kStages == 2 && time == 0;
      Copies copies = copies_of(arguments_.k, keys(i + 1), next);
      const auto ask = [&](int step) {
        if (asks) copies.template ask_part<kPanels>(step);
      };
      Scores s, grad;
      [[maybe_unused]] const PlaceByRows place{batch(), head(), first_row() + own_row(), first_key(now) + column};
      if constexpr (ChangesScores<Shape>) fetch_changes<kUnits, kEights>(arguments_.score, place);
      multiply_by_keys(s, shared_.q, keys(i), column, ask);
      if constexpr (ChangesScores<Shape>) change_scores(s, arguments_.score, place);
      RowNumbers<kUnits> lse_log2, dots;
      if constexpr (Changes<Shape>) {
        lse_log2.load(shared_.lse_log2 + own_row());
        weigh(s, lse_log2, place, now.masked(), i % Shape::kStages, column);
      } else {
        if (now.masked()) hide(s, masked_scores(i % Shape::kStages, column));
        lse_log2.load(shared_.lse_log2 + own_row());
        exponentiate(s, arguments_.score.scale_log2, lse_log2);
      }
      if constexpr (ChangesScores<Shape>) follow_changes(s, arguments_.score, lse_log2, place);
      copies = copies_of(arguments_.v, values(i + 1), next);
      multiply_by_keys(grad, shared_.grad_o, values(i), column, ask);
      float kept_scale = 1;
      if constexpr (Drops<Shape>) {
        DroppedWords<kUnits, Shape::kScoreColumns> dropped;
        find_dropped(dropped, arguments_.score.dropout, batch(), head(), first_row() + own_row(),
                     first_key(now) + column);
        drop(grad, dropped);
        kept_scale = arguments_.score.dropout.scale;
      }
      dots.load(shared_.dot + own_row());
      differentiate(grad, s, dots, kept_scale);
      Packed grad_s;
      pack<T>(grad_s, grad);
      multiply_keys(grad_q, grad_s, keys(i), column);
    }
    commit_copies();
  }

  using Words = FragmentWords<kUnits, Shape::kScoreColumns>;
  __device__ __forceinline__ Words masked_scores(int stage, int column) const {
    Words masked;
    if (arguments_.mask.intervals[0] != nullptr)
      words_from_intervals(masked, shared_.mask[stage], first_row() + own_row(), column);
    else
      words_from_cells(masked, shared_.mask[stage], own_row(), column);
    return masked;
  }

  /// Turns products into probabilities times slopes.
  __device__ __forceinline__ void weigh(Scores& s, const RowNumbers<kUnits>& lse_log2, const PlaceByRows& place,
                                        bool masked, int stage, int column) const {
    const auto change = change_at<typename Shape::Change>(arguments_.change, place);
    const auto weights = change_weights<kUnits, kEights>(change, arguments_.score.bias, place, lse_log2);
    const auto keep = [](int, int, int, float, float) {};
    if (masked)
      weigh_changed<true, Words>(s, masked_scores(stage, column).words, weights, keep);
    else
      weigh_changed<false, Words>(s, Words().words, weights, keep);
  }

  /// Computes s = rows keysᵀ for the warp's rows: scores from q and k, or gradients of probabilities from the gradient
  /// of o and v.
  template <class Between>
  __device__ __forceinline__ void multiply_by_keys(Scores& s, const std::uint8_t* rows, const std::uint8_t* keys,
                                                   int column, const Between& between) {
    const std::uint32_t a = shared_address(rows) + RowTile::lane_rows() + RowTile::step(own_row(), 0);
    const std::uint32_t b = shared_address(keys) + KeyTile::lane_columns() + KeyTile::step(column, 0);
#pragma unroll
    for (int step = 0; step < kPanels; ++step) {
      std::uint32_t of_rows[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) load_matrices(of_rows[unit], a + RowTile::step(16 * unit, step));
#pragma unroll
      for (int sixteen = 0; sixteen < kSteps; ++sixteen) {
        std::uint32_t of_keys[4];
        load_matrices(of_keys, b + KeyTile::step(16 * sixteen, step));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(s[unit][2 * sixteen], of_rows[unit], of_keys[0], of_keys[1], step == 0);
          multiply<T>(s[unit][2 * sixteen + 1], of_rows[unit], of_keys[2], of_keys[3], step == 0);
        }
      }
      between(step);
    }
  }

  /// Computes d += scores keys for kScoreColumns keys.
  __device__ __forceinline__ void multiply_keys(Gradients& d, const Packed& scores, const std::uint8_t* keys,
                                                int column) {
    const std::uint32_t b = shared_address(keys) + KeyTile::lane_rows() + KeyTile::step(column, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        std::uint32_t of_keys[4];
        load_matrices_transposed(of_keys, b + KeyTile::step(16 * step, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(d[unit][2 * panel], scores[step][unit], of_keys[0], of_keys[1]);
          multiply<T>(d[unit][2 * panel + 1], scores[step][unit], of_keys[2], of_keys[3]);
        }
      }
    }
  }

  /// Joins the sums of two sharers: each hands over the half of the dims that the other stores, and adds what it
  /// receives to its own half.
  __device__ __forceinline__ void join(Gradients& grad_q) {
    static_assert(Shape::kSharers == 2);
    constexpr int kHalf = kPanels, kNumbers = kUnits * kHalf * 4;
    static_assert(sizeof(shared_.k) + sizeof(shared_.v) >= Shape::kThreads * kNumbers * sizeof(float));
    auto* const sums = reinterpret_cast<float4*>(shared_.k) + lane_index();
    const auto place = [](int warp, int unit, int eight) { return ((warp * kUnits + unit) * kHalf + eight) * 32; };
    __syncthreads();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int eight = 0; eight < kHalf; ++eight) {
        const float(&low)[4] = grad_q[unit][eight];
        const float(&high)[4] = grad_q[unit][kHalf + eight];
        const bool gives_high = sharer() == 0;
        sums[place(warp(), unit, eight)] = {gives_high ? high[0] : low[0], gives_high ? high[1] : low[1],
                                            gives_high ? high[2] : low[2], gives_high ? high[3] : low[3]};
        if (!gives_high) {
#pragma unroll
          for (int i = 0; i < 4; ++i) grad_q[unit][eight][i] = high[i];
        }
      }
    __syncthreads();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int eight = 0; eight < kHalf; ++eight) {
        const float4 other = sums[place(warp() ^ 1, unit, eight)];
        float(&own)[4] = grad_q[unit][eight];
        own[0] += other.x;
        own[1] += other.y;
        own[2] += other.z;
        own[3] += other.w;
      }
  }

  /// Stores the warp's share of the dims.
  __device__ __forceinline__ void store(const Gradients& grad_q) const {
    constexpr int kNumbers = 4 * 2 * kPanels / Shape::kSharers;
    const QueryGradientArguments& to = arguments_;
    const int dim = sharer() * Shape::kOwnDims;
    T* const out = to.grad_q.of<T>(batch(), head()) + dim;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
      store_rows(reinterpret_cast<const float(&)[kNumbers]>(grad_q[unit][0][0]), {to.score.scale, to.score.scale}, out,
                 to.grad_q.row, first_row() + own_row() + 16 * unit + lane_index() / 4, to.query_length,
                 to.head_dim - dim);
  }

  QueryGradientMemory<Shape>& shared_;
  const QueryGradientArguments& arguments_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    query_gradient_kernel(const __grid_constant__ QueryGradientArguments arguments) {
  QueryGradientBlock<Shape>(shared_memory<QueryGradientMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
