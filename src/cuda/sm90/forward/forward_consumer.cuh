// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/scores/largest_scores.cuh"
#include "cuda/scores/running_softmax.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/sm90/forward/forward_shape.h"
#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/rows/row_consumer.cuh"

namespace flashmask::cuda::sm90 {

constexpr int kTilesToLook = 4;         // the first tiles of a row tile, whose maxima are always computed
constexpr float kLargestSum = 1 << 15;  // above this sum of a thread over a tile's row, a settled maximum is too small

/// A warpgroup of the forward: scores, softmax, output.
template <class Shape>
class ForwardConsumer : RowConsumer<Shape> {
  using Base = RowConsumer<Shape>;
  using Base::kScores, Base::kSteps, Base::shared_, Base::group_, Base::row_, Base::work_, Base::queries_, Base::keys_,
      Base::values_, Base::lane, Base::release;
  using typename Base::T, typename Base::Dropped;
  using Softmax = RunningSoftmax<1>;
  using OfRows = Softmax::OfRows;
  static constexpr int kOutputs = Shape::kValueDim / 2;
  enum class Maxima { rising, in_doubt, settled };

 public:
  __device__ __forceinline__ ForwardConsumer(RowMemory<Shape>& shared, const ForwardArguments& arguments,
                                             const RowTensors& tensors)
      : Base(shared), arguments_(arguments), o_{tensors.result, tensors.result_row}, panels_(tensors.bias) {}

  __device__ __forceinline__ void run() {
    float o[kOutputs];
    if (group_ + 1 == Shape::kGroups) pass_turn();
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      begin_rows(o, work.rows);
      Base::find_row_marks(row_marks_, slope_, work, arguments_.score.alibi);
      Base::begin_tile(work, arguments_.score.dropout);
      if (work.tiles() > 0) attend(o, work);
      finish_rows(o, Base::kept(work));
    }
    let_go_of_rows();
  }

 private:
  /// Ping-pong: warpgroups issue their products one after the other, so that one computes exponentials while another
  /// multiplies.
  __device__ __forceinline__ void await_turn() {
    if constexpr (Shape::kPingPongs) named_barrier(1 + group_, 2 * 128);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Shape::kPingPongs) named_barrier_arrive(1 + (group_ + 1) % Shape::kGroups, 2 * 128);
  }

  __device__ __forceinline__ void begin_rows(float (&o)[kOutputs], const TileTokens& rows) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    softmax_.clear();
    largest_.clear();
#pragma unroll
    for (int row = 0; row < 2; ++row)
      if (rows.first + row_ + 8 * row >= rows.end) softmax_.leave_out(0, row);
    maxima_ = Maxima::rising;
    tiles_to_look_ = kTilesToLook - 1;
  }

  __device__ __forceinline__ void attend(float (&o)[kOutputs], const Work& work) {
    barrier_wait(&shared_.q_full[queries_.slot], queries_.phase);
    if constexpr (Shape::kOrder == TileOrder::one_by_one) {
      let_go_of_rows();
#pragma unroll 1
      for (int tile = 0; tile < work.masked_tiles; ++tile) whole_tile<true>(o);
#pragma unroll 1
      for (int tile = 0; tile < work.full_tiles; ++tile) whole_tile<false>(o);
      end_queries();
    } else {
      attend_overlapping(o, work);
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void whole_tile(float (&o)[kOutputs]) {
    float s[kScores];
    std::uint32_t p[kSteps][4];
    std::uint32_t bits[RowWords::kWords];
    Dropped dropped;
    if constexpr (kMasked && Shape::kSkipsHidden) {
      if (Base::take_bits(bits)) return pass_tile();
    }
    find_scores(s, [&] {
      if constexpr (kMasked && !Shape::kSkipsHidden) Base::take_bits(bits);
      Base::find_dropped(dropped, arguments_.score.dropout);
    });
    if constexpr (kMasked) hide<RowWords>(as_unit(s), bits);
    OfRows factors, sums;
    if (raise_maxima(s, factors)) rescale(as_unit(o), factors);
    exponentiate(s, sums);
    softmax_.add_sums(sums);
    drop_probabilities(s, dropped);
    pack<T>(as_unit(p), as_unit(s));
    multiply_last_values(o, p);
  }

  /// Computes the changed scores of the next tile and releases its K; meanwhile() runs during the product.
  template <class Body>
  __device__ __forceinline__ void find_scores(float (&s)[kScores], const Body& meanwhile) {
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    Base::fetch_bias(arguments_.score.bias, panels_);
    meanwhile();
    wgmma_wait<0>();
    pin(s);
    change(s, [&] {
      release(&shared_.k_empty[keys_.slot]);
      keys_.advance();
    });
  }

  /// Skips a tile in which the group's rows see nothing.
  __device__ __forceinline__ void pass_tile() {
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
  }

  /// Adds p v of a tile with nothing left to compute during the product.
  __device__ __forceinline__ void multiply_last_values(float (&o)[kOutputs], const std::uint32_t (&p)[kSteps][4]) {
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    pin(o);
    wgmma_fence();
    multiply_values(o, p);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
  }

  /// Called when all products with the queries are done: results may take their place.
  __device__ __forceinline__ void end_queries() {
    if constexpr (Shape::kStagesResult) {
      staged_ = queries_.slot;
    } else {
      release(&shared_.q_empty[queries_.slot]);
    }
    queries_.advance();
  }

  /// The products of one tile overlap the softmax of the next.
  __device__ __forceinline__ void attend_overlapping(float (&o)[kOutputs], const Work& work) {
    std::uint32_t p[kSteps][4];
    first_tile(p, work.masked_tiles > 0);
    let_go_of_rows();
    next_tiles<true>(o, p, work.masked_tiles - 1);
    next_tiles<false>(o, p, work.full_tiles - (work.masked_tiles == 0 ? 1 : 0));
    end_queries();
    multiply_last_values(o, p);
  }

  template <bool kMasked>
  __device__ __forceinline__ void next_tiles(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4], int tiles) {
    if constexpr (Shape::kSettles) {
      settling_tiles<kMasked>(o, p, tiles);
    } else {
#pragma unroll 1
      for (; tiles > 0; --tiles) next_tile<kMasked, true>(o, p);
    }
  }

  /// Computes maxima until a tile raises none of the group's and every row has one. From then on they count as settled,
  /// until the sum of a tile's probabilities shows that one was too small. This saves a quarter of the work for each
  /// score, but holds K longer, which costs more than it saves in short rows.
  template <bool kMasked>
  __device__ __forceinline__ void settling_tiles(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4], int tiles) {
#pragma unroll 1
    while (tiles > 0) {
      if (maxima_ == Maxima::in_doubt) maxima_ = any_in_group(unsettled_) ? Maxima::rising : Maxima::settled;
      if (maxima_ == Maxima::rising) {
        next_tile<kMasked, true>(o, p);
        if (--tiles_to_look_ <= 0) maxima_ = Maxima::in_doubt;
        --tiles;
      }
#pragma unroll 1
      for (; maxima_ == Maxima::settled && tiles > 0; --tiles) next_tile<kMasked, false>(o, p);
    }
  }

  __device__ __forceinline__ void first_tile(std::uint32_t (&p)[kSteps][4], bool masked) {
    float s[kScores];
    Dropped dropped;
    find_scores(s, [&] { Base::find_dropped(dropped, arguments_.score.dropout); });
    if (masked) {
      std::uint32_t bits[RowWords::kWords];
      Base::take_bits(bits);
      hide<RowWords>(as_unit(s), bits);
    }
    OfRows factors, sums;
    raise_maxima(s, factors);
    exponentiate(s, sums);
    drop_probabilities(s, dropped);
    pack<T>(as_unit(p), as_unit(s));
    softmax_.add_sums(sums);
  }

  /// kLooks: computes maxima. Otherwise K is held until it is clear that its scores are not needed again.
  template <bool kMasked, bool kLooks>
  __device__ __forceinline__ void next_tile(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4]) {
    float s[kScores];
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    await_turn();
    pin(o);
    wgmma_fence();
    multiply_keys(s);
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_fence();
    multiply_values(o, p);
    pass_turn();
    Base::fetch_bias(arguments_.score.bias, panels_);
    std::uint32_t bits[RowWords::kWords];
    if constexpr (kMasked) Base::take_bits(bits);
    Dropped dropped;
    Base::find_dropped(dropped, arguments_.score.dropout);
    wgmma_wait<1>();
    pin(s);
    change(s, [&] {
      if constexpr (kLooks) release(&shared_.k_empty[keys_.slot]);
    });
    if constexpr (kMasked) hide<RowWords>(as_unit(s), bits);
    OfRows factors, sums;
    const bool raised = kLooks && raise_maxima(s, factors);
    exponentiate(s, sums);
    drop_probabilities(s, dropped);
    pin(s);
    const bool repeats = !kLooks && any_in_group(sums[0][0] > kLargestSum || sums[0][1] > kLargestSum);
    // This wait passes at once; its branch keeps the compiler from moving the exponentials past the wait for the
    // product.
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
    pack<T>(as_unit(p), as_unit(s));
    if (raised) rescale(as_unit(o), factors);
    if (repeats) repeat_tile<kMasked>(o, p, bits, dropped, sums);
    if constexpr (!kLooks) release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    softmax_.add_sums(sums);
  }

  /// Computes the tile again from its scores on: its probabilities were too large under the settled maxima.
  template <bool kMasked>
  __device__ __forceinline__ void repeat_tile(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4],
                                              std::uint32_t (&bits)[RowWords::kWords], Dropped& dropped, OfRows& sums) {
    float s[kScores];
    // Shuffles each lane's words to itself, so that the assembler does not keep predicates of all bits from the first
    // time.
#pragma unroll
    for (int row = 0; kMasked && row < 2; ++row) bits[row] = __shfl_sync(~0U, bits[row], lane());
#pragma unroll
    for (int i = 0; Drops<Shape> && i < Dropped::kWords; ++i)
      dropped.words[i] = __shfl_sync(~0U, dropped.words[i], lane());
    wgmma_fence();
    multiply_keys(s);
    wgmma_wait<0>();
    pin(s);
    change<true>(s, [] {});
    if constexpr (kMasked) hide<RowWords>(as_unit(s), bits);
    OfRows factors;
    const bool raised = raise_maxima(s, factors);
    exponentiate(s, sums);
    drop_probabilities(s, dropped);
    pack<T>(as_unit(p), as_unit(s));
    if (raised) rescale(as_unit(o), factors);
    maxima_ = Maxima::rising;
  }

  /// Changes the scores of the tile in the current buffer of K, ahead of hiding: caps them, then biases them by the
  /// marks and entries that lie beside it. let_go() is called as soon as nothing of that buffer is needed. kAgain: the
  /// tile's scores were changed before.
  template <bool kAgain = false, class Body>
  __device__ __forceinline__ void change(float (&s)[kScores], const Body& let_go) {
    if constexpr (Changes<Shape>) {
      const PlaceByRows place = Base::place_of_scores();
      let_go();
      return change_tile<typename Shape::Change>(as_unit(s), arguments_.change, arguments_.score.bias, place);
    }
    if constexpr (!kWritesBiases<Shape>) let_go();
    if constexpr (Caps<Shape>) {
      if constexpr (Shape::kCapsByPolynomial)
        cap(as_unit(s), arguments_.softcap);
      else
        cap(as_unit(s), arguments_.score.to_exponent);
    }
    if constexpr (Biases<Shape>) bias_by_distance(as_unit(s), row_marks_, shared_.marks[keys_.slot], slope_);
    Base::template add_bias<kAgain>(s, arguments_.score.bias, panels_);
    if constexpr (kWritesBiases<Shape>) let_go();
  }

  /// Drops probabilities, which still take part in the sums of their rows but in no output.
  __device__ __forceinline__ void drop_probabilities(float (&s)[kScores], const Dropped& dropped) {
    if constexpr (Drops<Shape>) drop(as_unit(s), dropped);
  }

  /// Returns whether any thread of the warpgroup passed true; its warps must issue the same products.
  __device__ __forceinline__ bool any_in_group(bool of_thread) {
    return __any_sync(~0U, named_barrier_any(1 + Shape::kGroups + group_, 128, of_thread));
  }

  /// s = q kᵀ
  __device__ __forceinline__ void multiply_keys(float (&s)[kScores]) {
    Base::template multiply_by_keys<Shape::kHeadDim>(s, shared_.q[queries_.slot], shared_.k[keys_.slot]);
  }

  /// o += p v
  __device__ __forceinline__ void multiply_values(float (&o)[kOutputs], const std::uint32_t (&p)[kSteps][4]) {
    Base::template multiply_scores<Shape::kValueDim>(o, p, shared_.v[values_.slot]);
  }

  /// Raises the running maxima of the warp's rows once one of them lags behind by more than the threshold, and returns
  /// whether it did. `factor` is what the output so far must be multiplied by; the sums are multiplied here. A maximum
  /// that lags behind changes only rounding, because numerator and denominator share it. Also notes whether the
  /// thread's maxima are settled.
  __device__ __forceinline__ bool raise_maxima(const float (&s)[kScores], OfRows& factors) {
    OfRows found;
    Softmax::find_maxima(as_unit(s)[0], found[0]);
    largest_.follow(found);
    const bool grew = softmax_.any_lags_behind(found, arguments_.score.scale_log2);
    unsettled_ = grew || fminf(fmaxf(found[0][0], softmax_.maximum(0, 0)),
                               fmaxf(found[0][1], softmax_.maximum(0, 1))) == -INFINITY;
    if (!__any_sync(~0U, grew)) return false;
    softmax_.raise(found, factors, arguments_.score.scale_log2);
    return true;
  }

  __device__ __forceinline__ void exponentiate(float (&s)[kScores], OfRows& sums) {
    Softmax::clear_sums(sums);
    softmax_.template exponentiate<kScores / 4>(as_unit(s), 0, arguments_.score.scale_log2, sums);
  }

  __device__ __forceinline__ void finish_rows(float (&o)[kOutputs], const Work& work) {
    FinishedRow rows[2] = {finished_row(0), finished_row(1)};
    const RowTile& tile = work.tile;
    const int first = work.rows.first, end = work.rows.end;
    if (arguments_.score.sinks.data != nullptr) {
#pragma unroll
      for (int row = 0; row < 2; ++row)
        rows[row].add_sink_of<T>(arguments_.score.sinks, tile.batch, tile.head, first + row_ + 8 * row, end);
    }
    if (lane() % 4 == 0) store_lse(work, rows);
    largest_.store(arguments_.max_scores, tile.batch, tile.head, first + row_ - lane() / 4, end,
                   arguments_.score.scale_log2 * kLn2);
    const float factor[2] = {rows[0].factor, rows[1].factor};
    if (Shape::kStagesResult && work.tiles() > 0) {
      named_barrier(1 + 2 * Shape::kGroups + group_, 128);  // the whole group has read its rows
      store_rows_staged<T>(o, factor, shared_.q[staged_] + group_ * 64 * kPanel * 2, Shape::kRows * kPanel * 2, o_,
                           first + group_ * 64, end, tile.head, tile.batch);
    } else {
      T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
      cuda::store_rows(o, factor, out, arguments_.o_row, first + row_, end, arguments_.value_dim);
    }
  }

  __device__ __forceinline__ FinishedRow finished_row(int row) const {
    if constexpr (Drops<Shape>)
      return FinishedRow::with_dropout(softmax_.maximum(0, row), softmax_.sum(0, row), arguments_.score.scale_log2,
                                       arguments_.score.dropout.scale);
    return FinishedRow::of(softmax_.maximum(0, row), softmax_.sum(0, row), arguments_.score.scale_log2);
  }

  /// Releases the buffer of Q that results lie in, once the copy engine has read them.
  __device__ __forceinline__ void let_go_of_rows() {
    if (!Shape::kStagesResult || staged_ < 0) return;
    await_stores_read();
    release(&shared_.q_empty[staged_]);
    staged_ = -1;
  }

  __device__ __forceinline__ void store_lse(const Work& work, const FinishedRow (&rows)[2]) {
    float* lse = arguments_.lse + work.tile.batch * arguments_.lse_batch + work.tile.head * arguments_.lse_head;
    const int first = work.rows.first + row_;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (first + 8 * row < work.rows.end) lse[first + 8 * row] = rows[row].lse();
    }
  }

  const ForwardArguments& arguments_;
  StoreMaps o_;
  int staged_ = -1;  // the buffer of Q that results lie in; -1: none
  Softmax softmax_;
  Maxima maxima_;            // the group's
  int tiles_to_look_;        // tiles left before the group asks whether its maxima are settled
  RowNumbers<1> row_marks_;  // for kernels that bias scores
  float slope_;              // the same
  bool unsettled_;           // a maximum of the thread rose in the last tile, or is still −∞
  // Behind all others, as most kernels have none.
  [[no_unique_address]] LargestScoresOf<Shape, 1> largest_;
  [[no_unique_address]] BiasReader<Shape> panels_;
};

}  // namespace flashmask::cuda::sm90
