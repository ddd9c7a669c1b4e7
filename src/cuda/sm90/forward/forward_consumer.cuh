// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/sm90/forward/forward_shape.cuh"
#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/rows/row_consumer.cuh"

namespace flashmask::cuda::sm90 {

constexpr float kRescaleThreshold = 8;  // the power of two by which the running maximum may lag behind
constexpr int kTilesToLook = 4;         // the first tiles of a row tile, whose maxima are always computed
constexpr float kLargestSum = 1 << 15;  // above this sum of a thread over a tile's row, a settled maximum is too small

/// A warpgroup of the forward: scores, softmax, output.
template <class Shape>
class ForwardConsumer : RowConsumer<Shape> {
  using Base = RowConsumer<Shape>;
  using Base::kScores, Base::kSteps, Base::shared_, Base::group_, Base::row_, Base::work_, Base::queries_, Base::keys_,
      Base::values_, Base::lane, Base::release;
  using typename Base::T, typename Base::Dropped;
  static constexpr int kOutputs = Shape::kValueDim / 2;
  enum class Maxima { rising, in_doubt, settled };

 public:
  __device__ __forceinline__ ForwardConsumer(RowMemory<Shape>& shared, const ForwardArguments& arguments,
                                             const RowTensors& tensors)
      : Base(shared), arguments_(arguments), o_(tensors.result) {}

  __device__ __forceinline__ void run() {
    float o[kOutputs];
    if (group_ + 1 == Shape::kGroups) pass_turn();
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      begin_rows(o);
      Base::begin_tile(work.tile, arguments_.dropout);
      if (work.tiles() > 0) attend(o, work);
      finish_rows(o, work);
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

  __device__ __forceinline__ void begin_rows(float (&o)[kOutputs]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
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
    std::uint32_t p[kSteps][4], bits[2];
    Dropped dropped;
    if constexpr (kMasked && Shape::kSkipsHidden) {
      if (Base::take_bits(bits)) return pass_tile();
    }
    find_scores(s, [&] {
      if constexpr (kMasked && !Shape::kSkipsHidden) Base::take_bits(bits);
      Base::find_dropped(dropped, arguments_.dropout);
    });
    if constexpr (kMasked) hide_in_rows(s, bits);
    float factor[2], sum[2];
    if (raise_maximum(s, factor)) rescale(o, factor);
    exponentiate(s, sum);
    add_sums(sum);
    drop_probabilities(s, dropped);
    pack_all<T>(p, s);
    multiply_last_values(o, p);
  }

  /// Computes the scores of the next tile and releases its K; meanwhile() runs during the product.
  template <class Body>
  __device__ __forceinline__ void find_scores(float (&s)[kScores], const Body& meanwhile) {
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    meanwhile();
    wgmma_wait<0>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
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
    find_scores(s, [&] { Base::find_dropped(dropped, arguments_.dropout); });
    if (masked) {
      std::uint32_t bits[2];
      Base::take_bits(bits);
      hide_in_rows(s, bits);
    }
    float factor[2], sum[2];
    raise_maximum(s, factor);
    exponentiate(s, sum);
    drop_probabilities(s, dropped);
    pack_all<T>(p, s);
    add_sums(sum);
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
    std::uint32_t bits[2];
    if constexpr (kMasked) Base::take_bits(bits);
    Dropped dropped;
    Base::find_dropped(dropped, arguments_.dropout);
    wgmma_wait<1>();
    pin(s);
    if constexpr (kLooks) release(&shared_.k_empty[keys_.slot]);
    if constexpr (kMasked) hide_in_rows(s, bits);
    float factor[2], sum[2];
    const bool raised = kLooks && raise_maximum(s, factor);
    exponentiate(s, sum);
    drop_probabilities(s, dropped);
    pin(s);
    const bool repeats = !kLooks && any_in_group(sum[0] > kLargestSum || sum[1] > kLargestSum);
    // This wait passes at once; its branch keeps the compiler from moving the exponentials past the wait for the
    // product.
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
    pack_all<T>(p, s);
    if (raised) rescale(o, factor);
    if (repeats) repeat_tile<kMasked>(o, p, bits, dropped, sum);
    if constexpr (!kLooks) release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    add_sums(sum);
  }

  /// Computes the tile again from its scores on: its probabilities were too large under the settled maxima.
  template <bool kMasked>
  __device__ __forceinline__ void repeat_tile(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4],
                                              std::uint32_t (&bits)[2], Dropped& dropped, float (&sum)[2]) {
    float s[kScores];
    // Shuffles each lane's words to itself, so that the assembler does not keep predicates of all bits from the first
    // time.
#pragma unroll
    for (int row = 0; kMasked && row < 2; ++row) bits[row] = __shfl_sync(~0U, bits[row], lane());
#pragma unroll
    for (int i = 0; Shape::kDropout && i < Dropped::kWords; ++i)
      dropped.words[i] = __shfl_sync(~0U, dropped.words[i], lane());
    wgmma_fence();
    multiply_keys(s);
    wgmma_wait<0>();
    pin(s);
    if constexpr (kMasked) hide_in_rows(s, bits);
    float factor[2];
    const bool raised = raise_maximum(s, factor);
    exponentiate(s, sum);
    drop_probabilities(s, dropped);
    pack_all<T>(p, s);
    if (raised) rescale(o, factor);
    maxima_ = Maxima::rising;
  }

  /// Drops probabilities, which still take part in the sums of their rows but in no output.
  __device__ __forceinline__ void drop_probabilities(float (&s)[kScores], const Dropped& dropped) {
    if constexpr (Shape::kDropout) drop(s, dropped);
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
  __device__ __forceinline__ bool raise_maximum(const float (&s)[kScores], float (&factor)[2]) {
    // Two independent chains per row: in a single one, each operation would wait for the one before.
    float chains[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kScores; ++i) chains[i % 4] = fmaxf(chains[i % 4], s[i]);
    float found[2] = {fmaxf(chains[0], chains[1]), fmaxf(chains[2], chains[3])};
    bool grew = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 1));
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 2));
      grew |= (found[row] - maximum_[row]) * arguments_.scale_log2 > kRescaleThreshold;
    }
    unsettled_ = grew || fminf(fmaxf(found[0], maximum_[0]), fmaxf(found[1], maximum_[1])) == -INFINITY;
    if (!__any_sync(~0U, grew)) return false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float raised = fmaxf(found[row], maximum_[row]);
      const float shift = raised == -INFINITY ? 0 : raised;
      factor[row] = exp2_approximate((maximum_[row] - shift) * arguments_.scale_log2);
      maximum_[row] = raised;
      sum_[row] *= factor[row];
    }
    return true;
  }

  __device__ __forceinline__ void exponentiate(float (&s)[kScores], float (&sum)[2]) {
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; ++row)
      shift[row] = maximum_[row] == -INFINITY ? 0 : maximum_[row] * arguments_.scale_log2;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_approximate(fmaf(s[i], arguments_.scale_log2, -shift[i % 4 / 2]));
      float& of_row = sum[i % 4 / 2];
      of_row = i == 0 || i == 2 ? s[i] : of_row + s[i];
    }
  }

  __device__ __forceinline__ void add_sums(const float (&sum)[2]) {
    sum_[0] += sum[0];
    sum_[1] += sum[1];
  }

  __device__ __forceinline__ void rescale(float (&o)[kOutputs], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i % 4 / 2];
  }

  __device__ __forceinline__ void finish_rows(float (&o)[kOutputs], const Work& work) {
    float factor[2], lse_log2[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 1);
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 2);
      factor[row] = factor_of(sum_[row]);
      lse_log2[row] =
          Shape::kDropout || sum_[row] > 0 ? maximum_[row] * arguments_.scale_log2 + log2f(sum_[row]) : -INFINITY;
    }
    const RowTile& tile = Base::tile_of(work);
    const int first = tile.row_tile * Shape::kRows;
    if (arguments_.sinks.data != nullptr) add_sinks(tile, first + row_, factor, lse_log2);
    if (lane() % 4 == 0) store_lse(tile, first + row_, lse_log2);
    if (Shape::kStagesResult && work.tiles() > 0) {
      named_barrier(1 + 2 * Shape::kGroups + group_, 128);  // the whole group has read its rows
      store_rows_staged<T>(o, factor, shared_.q[staged_] + group_ * 64 * kPanel * 2, Shape::kRows * kPanel * 2, o_,
                           first + group_ * 64, tile.head, tile.batch);
    } else {
      T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
      cuda::store_rows(o, factor, out, arguments_.o_row, first + row_, arguments_.query_length, arguments_.value_dim);
    }
  }

  /// Returns what a row's output is multiplied by. With dropout this takes the fast division, accurate to 2^−22, and
  /// rows that see nothing need no special case, because their output is 0 and their lse −∞ + −∞: a constant for them
  /// would take a register through all loops.
  __device__ __forceinline__ float factor_of(float sum) const {
    if constexpr (Shape::kDropout) return __fdividef(arguments_.dropout.scale, fmaxf(sum, 1e-30F));
    return sum > 0 ? 1 / sum : 0;
  }

  /// Releases the buffer of Q that results lie in, once the copy engine has read them.
  __device__ __forceinline__ void let_go_of_rows() {
    if (!Shape::kStagesResult || staged_ < 0) return;
    if (lane() == 0) {
      await_stores_read();
      barrier_arrive(&shared_.q_empty[staged_]);
    }
    __syncwarp();
    staged_ = -1;
  }

  __device__ __forceinline__ void add_sinks(const RowTile& tile, int first, float (&factor)[2],
                                            float (&lse_log2)[2]) const {
    constexpr float kLog2E = 1.44269504088896F;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int existing = min(first + 8 * row, arguments_.query_length - 1);
      add_sink(arguments_.sinks.at<T>(tile.batch, tile.head, existing) * kLog2E, factor[row], lse_log2[row]);
    }
  }

  __device__ __forceinline__ void store_lse(const RowTile& tile, int first, const float (&lse_log2)[2]) {
    float* lse = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
    constexpr float kLn2 = 0.693147180559945F;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (first + 8 * row < arguments_.query_length) lse[first + 8 * row] = lse_log2[row] * kLn2;
    }
  }

  const ForwardArguments& arguments_;
  const CUtensorMap* o_;
  int staged_ = -1;  // the buffer of Q that results lie in; -1: none
  float maximum_[2], sum_[2];
  Maxima maxima_;      // the group's
  int tiles_to_look_;  // tiles left before the group asks whether its maxima are settled
  bool unsettled_;     // a maximum of the thread rose in the last tile, or is still −∞
};

}  // namespace flashmask::cuda::sm90
