// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/instructions/store_units.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/backward/column_shape.cuh"
#include "cuda/sm80/backward/key_words.cuh"
#include "cuda/sm80/backward/query_sums.cuh"
#include "cuda/sm80/common/own_bias.cuh"

namespace flashmask::cuda::sm80 {

/// A block takes a tile of keys of one key head through the rows of all its query heads: gradients of k and v stay in
/// registers, and no two blocks add to the same ones. Scores are transposed: packed probabilities and gradients of
/// scores are register operands of the products for the gradients of v and k. Those that warps share go through shared
/// memory, as do gradients of scores for the gradient of q.
template <class Shape>
class ColumnBlock {
  using T = typename Shape::Element;
  using KeyTile = typename Shape::KeyTile;
  using RowTile = typename Shape::RowTile;
  using ScoreTile = typename Shape::ScoreTile;
  static constexpr int kUnits = Shape::kUnits, kEights = Shape::kScoreRows / 8, kScoreSteps = Shape::kScoreRows / 16,
                       kDimSteps = Shape::kHeadDim / 16, kOwnPanels = Shape::kOwnDims / 16;
  // Half of the warps compute the delayed product before the other products of a part, half after them, so that the two
  // warps of a scheduler do not both wait for the same thing at once.
  static constexpr bool kAlternates = Shape::kDelayed && Shape::kSharers > 1;
  // Whether copies of rows are issued between products, where registers suffice for their addresses.
  static constexpr bool kSpreads = Shape::kStages == 2 && Shape::kHeadDim < 256;
  // Whether dropout's decisions are found behind changes of scores, which take the registers they would lie in.
  static constexpr bool kDrawsLate =
      Drops<Shape> && (ChangesScores<Shape> || Changes<Shape>)&&Shape::kHeadDim == 128 && !Shape::kDelayed;
  // A part's rows are computed in so many times; unrolled, the code of several would take much of a loop.
  static constexpr int kTimes = Shape::kOwnRows / Shape::kScoreRows,
                       kUnrolledTimes = Shape::kHeadDim <= 32 ? 1 : kTimes;
  // Whether a warp copies its values of a bias to where its gradients of scores will lie: those of the rows that it
  // computes at once, to the panel of these.
  static constexpr bool kStagesBias =
      ChangesScores<Shape> && Shape::kHeadDim <= 32 && Shape::kDelayed && Shape::kSharers == 1;
  using OwnBias = sm80::OwnBias<T, Shape::kScoreRows, Shape::kOwnKeys, kTimes, ScoreTile::kPanelBytes>;
  static_assert(!kStagesBias || (Shape::kScoreRows == 16 && OwnBias::kBytes == ScoreTile::step(Shape::kOwnKeys, 0)));
  using Scores = float[kUnits][kEights][4];
  using Packed = std::uint32_t[kScoreSteps][kUnits][4];
  using Gradients = float[kUnits][2 * kOwnPanels][4];
  using Values = std::uint32_t[Shape::kHoldsValues ? kDimSteps : 1][kUnits][4];

 public:
  __device__ __forceinline__ ColumnBlock(ColumnMemory<Shape>& shared, const ColumnArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    begin_keys();
    Gradients grad_k = {}, grad_v = {};
    if (shared_.steps[0].exists()) attend(grad_k, grad_v);
    await_copies<0>();  // also where the key tile visits nothing
    if (arguments_.float32_gradients)
      store<float>(grad_k, grad_v);
    else
      store<T>(grad_k, grad_v);
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  static __device__ __forceinline__ int group() { return warp() / Shape::kSharers; }
  static __device__ __forceinline__ int sharer() { return warp() % Shape::kSharers; }
  /// Return the warp's first key in the tile, its first row in a part, and its first panel of dims.
  static __device__ __forceinline__ int own_key() { return group() * Shape::kOwnKeys; }
  static __device__ __forceinline__ int own_row() { return sharer() * Shape::kOwnRows; }
  static __device__ __forceinline__ int own_panel() { return sharer() * kOwnPanels; }

  /// Publishes the key tile and its first steps while its keys and values are being copied.
  __device__ __forceinline__ void begin_keys() {
    const ColumnItem item(arguments_);
    shared_.steps.template begin<Shape::kWarps>(lists_of(item), [&] {
      copy_keys(item);
      commit_copies();
      if (thread_index() == 0) shared_.item = item;
    });
    shared_.steps.extend(lists_of(item), 0);
    __syncthreads();
  }

  __device__ __forceinline__ int batch() const { return shared_.item.batch; }
  __device__ __forceinline__ int kv_head() const { return shared_.item.kv_head; }
  __device__ __forceinline__ int first_key() const { return shared_.item.column_tile * Shape::kColumns; }
  __device__ __forceinline__ int query_head(const TileStep& step) const {
    return kv_head() * arguments_.head_ratio + step.head();
  }
  /// Returns the mask's list for the step's head, as TileList finds it.
  __device__ __forceinline__ int list_of(const TileStep& step) const {
    const TileMapView& map = arguments_.map;
    return (map.batch == 1 ? 0 : batch()) * map.heads + query_head(step) / map.head_ratio;
  }

  __device__ __forceinline__ TileLists lists_of(const ColumnItem& item) const {
    return {arguments_.map,        item.batch,       item.kv_head * arguments_.head_ratio,
            arguments_.head_ratio, item.column_tile, (item.column_tile + 1) * Shape::kColumns > arguments_.key_length};
  }

  __device__ __forceinline__ void extend(int begun) { shared_.steps.extend(lists_of(shared_.item), begun); }

  /// Returns the step that part i belongs to; parts are counted over all steps.
  __device__ __forceinline__ TileStep part(int i) const { return shared_.steps[i / Shape::kParts]; }

  __device__ __forceinline__ void attend(Gradients& grad_k, Gradients& grad_v) {
    Values values;
    if constexpr (Shape::kHoldsValues) hold_values(values);
    copy_rows(part(0), 0);
    commit_copies();
    int i = 0;
#pragma unroll 1
    for (;; ++i) {
      if constexpr (Drops<Shape>) extend((i + 1) / Shape::kParts);
      await_copies<0>();
      __syncthreads();
      // Extending here is faster, but takes registers that dropout needs.
      if (!Drops<Shape> && warp() == 0) extend((i + 1) / Shape::kParts);
      const TileStep now = part(i), next = part(i + 1);
      if constexpr (kStagesBias) ask_bias(now, i);
      if (next.exists()) {
        if constexpr (kSpreads)
          copy_statistics(next, i + 1);
        else if constexpr (Shape::kStages == 2)
          copy_rows(next, i + 1);
      }
      const bool first_half = !kAlternates || warp() < Shape::kWarps / 2;
      if (Shape::kDelayed && first_half && i > 0) add_to_queries(part(i - 1), i - 1);
      visit(grad_k, grad_v, values, now, next, i);
      if (kAlternates && !first_half && i > 0) add_to_queries(part(i - 1), i - 1);
      if (!next.exists()) break;
      if constexpr (Shape::kStages == 1) {
        __syncthreads();
        copy_rows(next, i + 1);
        commit_copies();
      }
    }
    if constexpr (Shape::kDelayed) {
      __syncthreads();
      add_to_queries(part(i), i);
    }
  }

  __device__ __forceinline__ void copy_keys(const ColumnItem& item) {
    const int first_key = item.column_tile * Shape::kColumns;
    KeyTile::template copy<Shape::kThreads>(shared_address(shared_.k), arguments_.k.of(item.batch, item.kv_head),
                                            first_key, thread_index());
    KeyTile::template copy<Shape::kThreads>(values_address(), arguments_.v.of(item.batch, item.kv_head), first_key,
                                            thread_index());
  }
  __device__ __forceinline__ std::uint32_t values_address() const {
    static_assert(!Shape::kHoldsValues || sizeof(shared_.rows) >= KeyTile::kBytes);
    return Shape::kHoldsValues ? shared_address(shared_.rows) : shared_address(shared_.v.bytes);
  }

  __device__ __forceinline__ void hold_values(Values& values) {
    await_copies<0>();
    __syncthreads();
    const std::uint32_t from = values_address() + KeyTile::lane_rows() + KeyTile::step(own_key(), 0);
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step)
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        load_matrices(values[step][unit], from + KeyTile::step(16 * unit, step));
    __syncthreads();
  }

  /// Returns the first row of part i, counted from the tile's.
  static __device__ __forceinline__ int part_row(int i) { return i % Shape::kParts * Shape::kPartRows; }
  __device__ __forceinline__ const std::uint8_t* queries(int i) const { return shared_.rows[i % Shape::kStages][0]; }
  __device__ __forceinline__ const std::uint8_t* output_gradients(int i) const {
    return shared_.rows[i % Shape::kStages][1];
  }
  __device__ __forceinline__ std::uint8_t* score_gradients(int i) const {
    return shared_.grad_s[Shape::kDelayed ? i % 2 : 0];
  }

  using Copies = typename RowTile::template Copies<Shape::kThreads, Rows>;
  /// Returns the copies of the rows of part i of a step. Past the last step: zeros, never read.
  __device__ __forceinline__ Copies copies_of(const TensorRows& tensor, const std::uint8_t* to, const TileStep& step,
                                              int i) const {
    return Copies(shared_address(to), tensor.of(batch(), query_head(step)), first_row(step, i), thread_index());
  }
  static __device__ __forceinline__ int first_row(const TileStep& step, int i) {
    return step.exists() ? step.tile * Shape::kRows + part_row(i) : -1;
  }

  /// Issues all copies that part i of this step needs.
  __device__ __forceinline__ void copy_rows(const TileStep& step, int i) {
    copies_of(arguments_.q, queries(i), step, i).template ask_rest<0, 1>();
    copies_of(arguments_.grad_o, output_gradients(i), step, i).template ask_rest<0, 1>();
    copy_statistics(step, i);
  }

  __device__ __forceinline__ void copy_statistics(const TileStep& step, int i) {
    const ColumnArguments& from = arguments_;
    constexpr int kPieces = Shape::kPartRows / 4;
    const int stage = i % Shape::kStages;
    const int thread = static_cast<int>(thread_index()), piece = thread % kPieces * 4;
    const std::int64_t at =
        (static_cast<std::int64_t>(batch()) * from.query_heads + query_head(step)) * from.statistics.padded +
        first_row(step, i) + piece;
    if (thread < kPieces)
      copy_16(shared_address(shared_.lse_log2[stage] + piece), from.statistics.lse_log2 + at, true);
    else if (thread < 2 * kPieces)
      copy_16(shared_address(shared_.dot[stage] + piece), from.statistics.dot + at, true);
  }

  /// Computes part i, except the gradient of q where it is delayed. Issues the copies of the next part's rows between
  /// products.
  __device__ __forceinline__ void visit(Gradients& grad_k, Gradients& grad_v, const Values& values, const TileStep& now,
                                        const TileStep& next, int i) {
    const int stage = i % Shape::kStages;
#pragma unroll kUnrolledTimes
    for (int time = 0; time < kTimes; ++time) {
      const int row = own_row() + time * Shape::kScoreRows;
      const bool asks = kSpreads && time == 0;
      Packed p, grad_s;
      DroppedWords<kUnits, Shape::kScoreRows> dropped;
      if constexpr (Drops<Shape> && !kDrawsLate) find_dropped(dropped, now, part_row(i) + row);
      KeyMask<kUnits, Shape::kScoreRows> mask;
      if (now.masked()) mask.ask(arguments_.mask, list_of(now), first_key() + own_key(), now.tile, part_row(i) + row);
      if constexpr (ChangesScores<Shape>) {
        if (!stages_bias()) fetch_changes<kUnits, kEights>(arguments_.score, place_of(now, part_row(i) + row));
      }
      Scores s;
      Copies copies = copies_of(arguments_.q, queries(i + 1), next, i + 1);
      const auto ask = [&](int step) {
        if (!asks) return;
        if (step == kDimSteps / 2) copies = copies_of(arguments_.grad_o, output_gradients(i + 1), next, i + 1);
        copies.template ask_part<kDimSteps / 2>(step % (kDimSteps / 2));
      };
      multiply_keys(s, shared_.k, queries(i), row, ask);
      if constexpr (ChangesScores<Shape>) change(s, now, i, row);
      TransposedRowNumbers<kEights> lse_log2, dots;
      if constexpr (Changes<Shape>) {
        lse_log2.load(shared_.lse_log2[stage] + row);
        weigh(s, p, mask, lse_log2, now, part_row(i) + row);
        if constexpr (kDrawsLate) find_dropped(dropped, now, part_row(i) + row);
      } else {
        if (now.masked()) hide(s, mask.masked_scores(arguments_.mask, now.tile, part_row(i) + row));
        lse_log2.load(shared_.lse_log2[stage] + row);
        exponentiate(s, arguments_.score.scale_log2, lse_log2);
        if constexpr (kDrawsLate) find_dropped(dropped, now, part_row(i) + row);
        pack<T>(p, s);
      }
      if constexpr (Drops<Shape>) drop(p, dropped);
      if constexpr (ChangesScores<Shape>)
        follow_changes(s, arguments_.score, lse_log2, place_of(now, part_row(i) + row));
      Scores grad;
      if constexpr (Shape::kHoldsValues)
        multiply_held(grad, values, output_gradients(i), row);
      else
        multiply_keys(grad, shared_.v.bytes, output_gradients(i), row, [](int) {});
      if constexpr (Drops<Shape>) drop(grad, dropped);
      dots.load(shared_.dot[stage] + row);
      differentiate(grad, s, dots, kept_scale());
      pack<T>(grad_s, grad);
      if (Shape::kSharers > 1) store_scores(shared_.p.bytes, p, row);
      if (Shape::kSharers > 1 || arguments_.query_sums != nullptr) store_scores(score_gradients(i), grad_s, row);
      multiply_rows(grad_v, p, output_gradients(i), row);
      multiply_rows(grad_k, grad_s, queries(i), row);
    }
    commit_copies();
    if constexpr (Shape::kSharers > 1 && Shape::kDelayed) {
      sync_threads(1 + group(), 32 * Shape::kSharers);
    } else if constexpr (!Shape::kDelayed) {
      if (Shape::kSharers > 1 || arguments_.query_sums != nullptr) __syncthreads();
    }
    if constexpr (Shape::kSharers > 1) {
      multiply_shared(grad_v, shared_.p.bytes, output_gradients(i));
      multiply_shared(grad_k, score_gradients(i), queries(i));
    }
    if constexpr (!Shape::kDelayed) add_to_queries(now, i);
  }

  /// Finds the decisions about the warp's scores from a row of the step's tile on.
  __device__ __forceinline__ void find_dropped(DroppedWords<kUnits, Shape::kScoreRows>& dropped, const TileStep& step,
                                               int row) const {
    find_dropped_transposed(dropped, arguments_.score.dropout, batch(), query_head(step), first_key() + own_key(),
                            step.tile * Shape::kRows + row);
  }

  __device__ __forceinline__ bool stages_bias() const {
    return kStagesBias && comes_in_units<T>(arguments_.score.bias);
  }
  /// Issues the copies of the warp's values of a bias for part i, which is free of gradients of scores by now.
  __device__ __forceinline__ void ask_bias(const TileStep& step, int i) {
    if (!stages_bias()) return;
    OwnBias::copy(shared_address(score_gradients(i)) + ScoreTile::step(own_key(), 0), arguments_.score.bias, batch(),
                  query_head(step), first_row(step, i), first_key() + own_key());
    commit_copies();
  }
  /// Changes the scores of rows of part i, from `row` of the part on.
  __device__ __forceinline__ void change(Scores& s, const TileStep& step, int i, int row) const {
    if constexpr (kStagesBias) {
      if (stages_bias()) {
        if (arguments_.score.to_exponent != 0) cap(s, arguments_.score.to_exponent);
        await_copies<0>();
        __syncwarp();
        return OwnBias::add_transposed(s, arguments_.score.bias,
                                       shared_address(score_gradients(i)) + ScoreTile::step(own_key(), row / 16));
      }
    }
    change_scores(s, arguments_.score, place_of(step, part_row(i) + row));
  }

  /// Turns products, from a row of the step's tile on, into probabilities times slopes, and packs the probabilities.
  template <class Mask>
  __device__ __forceinline__ void weigh(Scores& s, Packed& p, const Mask& mask,
                                        const TransposedRowNumbers<kEights>& lse_log2, const TileStep& step,
                                        int row) const {
    using Words = FragmentWords<kUnits, Shape::kScoreRows>;
    const TransposedPlace place = place_of(step, row);
    const auto change = change_at<typename Shape::Change>(arguments_.change, place);
    const auto weights = change_weights<kUnits, kEights>(change, arguments_.score.bias, place, lse_log2);
    const auto keep = [&](int unit, int eight, int pair, float first, float second) {
      p[eight / 2][unit][eight % 2 * 2 + pair] = pack<T>(first, second);
    };
    if (step.masked())
      weigh_changed<true, Words>(s, mask.masked_scores(arguments_.mask, step.tile, row).words, weights, keep);
    else
      weigh_changed<false, Words>(s, Words().words, weights, keep);
  }

  /// Returns where the warp's scores lie from a row of the step's tile on.
  __device__ __forceinline__ TransposedPlace place_of(const TileStep& step, int row) const {
    return {batch(), query_head(step), step.tile * Shape::kRows + row, first_key() + own_key()};
  }

  /// Returns the scale of the probabilities that dropout keeps.
  __device__ __forceinline__ float kept_scale() const {
    if constexpr (Drops<Shape>) return arguments_.score.dropout.scale;
    return 1;
  }

  /// Computes s = keys rowsᵀ for the warp's keys and kScoreRows rows: transposed scores from k and q, or gradients of
  /// probabilities from v and the gradient of o.
  template <class Between>
  __device__ __forceinline__ void multiply_keys(Scores& s, const std::uint8_t* keys, const std::uint8_t* rows, int row,
                                                const Between& between) {
    const std::uint32_t a = shared_address(keys) + KeyTile::lane_rows() + KeyTile::step(own_key(), 0);
    const std::uint32_t b = shared_address(rows) + RowTile::lane_columns() + RowTile::step(row, 0);
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) {
      std::uint32_t of_keys[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) load_matrices(of_keys[unit], a + KeyTile::step(16 * unit, step));
      multiply_by_rows(s, of_keys, b + RowTile::step(0, step), step == 0);
      between(step);
    }
  }
  __device__ __forceinline__ void multiply_held(Scores& s, const Values& keys, const std::uint8_t* rows, int row) {
    const std::uint32_t b = shared_address(rows) + RowTile::lane_columns() + RowTile::step(row, 0);
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) multiply_by_rows(s, keys[step], b + RowTile::step(0, step), step == 0);
  }
  __device__ __forceinline__ void multiply_by_rows(Scores& s, const std::uint32_t (&keys)[kUnits][4],
                                                   std::uint32_t rows, bool first) {
#pragma unroll
    for (int sixteen = 0; sixteen < kScoreSteps; ++sixteen) {
      std::uint32_t b[4];
      load_matrices(b, rows + RowTile::step(16 * sixteen, 0));
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        multiply<T>(s[unit][2 * sixteen], keys[unit], b[0], b[1], first);
        multiply<T>(s[unit][2 * sixteen + 1], keys[unit], b[2], b[3], first);
      }
    }
  }

  /// Computes d += scores rows for the warp's keys and dims, with the packed scores of its own rows.
  __device__ __forceinline__ void multiply_rows(Gradients& d, const Packed& scores, const std::uint8_t* rows, int row) {
    const std::uint32_t b = shared_address(rows) + RowTile::lane_rows() + RowTile::step(row, own_panel());
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) multiply_dims(d, scores[step], b + RowTile::step(16 * step, 0));
  }
  /// Computes d += scores rows for the rows of the other sharers, whose scores lie in shared memory.
  __device__ __forceinline__ void multiply_shared(Gradients& d, const std::uint8_t* scores, const std::uint8_t* rows) {
#pragma unroll 1
    for (int other = 1; other < Shape::kSharers; ++other) {
      const int row = (sharer() + other) % Shape::kSharers * Shape::kOwnRows;
      const std::uint32_t a = shared_address(scores) + ScoreTile::lane_rows() + ScoreTile::step(own_key(), row / 16);
      const std::uint32_t b = shared_address(rows) + RowTile::lane_rows() + RowTile::step(row, own_panel());
#pragma unroll
      for (int step = 0; step < Shape::kOwnRows / 16; ++step) {
        std::uint32_t of_keys[kUnits][4];
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) load_matrices(of_keys[unit], a + ScoreTile::step(16 * unit, step));
        multiply_dims(d, of_keys, b + RowTile::step(16 * step, 0));
      }
    }
  }
  __device__ __forceinline__ void multiply_dims(Gradients& d, const std::uint32_t (&scores)[kUnits][4],
                                                std::uint32_t rows) {
#pragma unroll
    for (int panel = 0; panel < kOwnPanels; ++panel) {
      std::uint32_t b[4];
      load_matrices_transposed(b, rows + RowTile::step(0, panel));
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        multiply<T>(d[unit][2 * panel], scores[unit], b[0], b[1]);
        multiply<T>(d[unit][2 * panel + 1], scores[unit], b[2], b[3]);
      }
    }
  }

  /// Adds the warp's share of the gradient of q of part i, gradients of scores times k, to the sums.
  __device__ __forceinline__ void add_to_queries(const TileStep& step, int i) {
    if (arguments_.query_sums == nullptr) return;
    using Sums = QuerySums<Shape>;
    const std::int64_t head = static_cast<std::int64_t>(batch()) * arguments_.query_heads + query_head(step);
    const std::int64_t of_part =
        head * (arguments_.statistics.padded / Shape::kPartRows) + step.tile * Shape::kParts + i % Shape::kParts;
    const std::uint32_t a =
        shared_address(score_gradients(i)) + ScoreTile::lane_columns() + ScoreTile::step(0, Sums::first_row() / 16);
    const std::uint32_t b = shared_address(shared_.k) + KeyTile::lane_rows() + KeyTile::step(0, Sums::first_dim() / 16);
    constexpr int kPanels = Shape::kSumDims / 16, kAtOnce = kPanels == 4 ? 2 : kPanels;  // as registers allow
#pragma unroll
    for (int first = 0; first < kPanels; first += kAtOnce) {
      float d[Sums::kUnits][2 * kAtOnce][4];
#pragma unroll
      for (int keys = 0; keys < Shape::kColumns; keys += 16) {
        std::uint32_t scores[Sums::kUnits][4];
#pragma unroll
        for (int unit = 0; unit < Sums::kUnits; ++unit)
          load_matrices_transposed(scores[unit], a + ScoreTile::step(keys, unit));
#pragma unroll
        for (int panel = 0; panel < kAtOnce; ++panel) {
          std::uint32_t k[4];
          load_matrices_transposed(k, b + KeyTile::step(keys, first + panel));
#pragma unroll
          for (int unit = 0; unit < Sums::kUnits; ++unit) {
            multiply<T>(d[unit][2 * panel], scores[unit], k[0], k[1], keys == 0);
            multiply<T>(d[unit][2 * panel + 1], scores[unit], k[2], k[3], keys == 0);
          }
        }
      }
      Sums::add(arguments_.query_sums, of_part, 2 * first, d);
    }
  }

  /// Stores scores as [key][row].
  static __device__ __forceinline__ void store_scores(std::uint8_t* tile, const Packed& packed, int row) {
    store_units<ScoreTile>(tile, packed, own_key(), row);
  }

  template <class Out>
  __device__ __forceinline__ void store(const Gradients& grad_k, const Gradients& grad_v) const {
    const ColumnArguments& to = arguments_;
    const int dim = own_panel() * 16;
    Out* const k = to.grad_k.of<Out>(batch(), kv_head()) + dim;
    Out* const v = to.grad_v.of<Out>(batch(), kv_head()) + dim;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int first = first_key() + own_key() + 16 * unit + lane_index() / 4;
      store_rows(flat(grad_k[unit]), {to.score.scale, to.score.scale}, k, to.grad_k.row, first, to.key_length,
                 to.head_dim - dim);
      store_rows(flat(grad_v[unit]), {kept_scale(), kept_scale()}, v, to.grad_v.row, first, to.key_length,
                 to.value_dim - dim);
    }
  }
  template <int kEights>
  static __device__ __forceinline__ const float (&flat(const float (&d)[kEights][4]))[4 * kEights] {
    return reinterpret_cast<const float(&)[4 * kEights]>(d[0][0]);
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    column_kernel(const __grid_constant__ ColumnArguments arguments) {
  if (!arguments.choice.has_the_work()) return;
  ColumnBlock<Shape>(shared_memory<ColumnMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
