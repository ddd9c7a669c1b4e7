// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm90/backward/column_memory.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"

namespace flashmask::cuda::sm90 {

/// A warpgroup, which takes 64 keys of every key tile. Scores are transposed, so each thread holds parts of two keys,
/// and packed probabilities and score gradients are register operands of the products for the gradients of v and k.
/// Only score gradients go through shared memory, for the product that makes the gradient of q.
template <class Shape>
class ColumnConsumer {
 protected:
  using T = typename Shape::Element;
  using Mask = MaskOf<Shape>;
  using Words = typename Mask::Words;
  static constexpr int kScores = Shape::kRows / 2;
  static constexpr int kGradients = Shape::kHeadDim / 2;
  static constexpr int kSteps = Shape::kRows / 16;
  static constexpr int kQuerySums = 32;  // per thread, of the 64 × 64 part of the gradient of q that the group computes
  static constexpr int kRowPanel = Shape::kRows * kPanel * 2, kColumnPanel = Shape::kColumns * kPanel * 2;
  using Rows = TransposedRowNumbers<Shape::kRows / 8>;
  using HalfRows = TransposedRowNumbers<Shape::kRows / 16>;
  using Dropped = DroppedWords<1, Shape::kRows>;
  /// With 128 rows and dropout, registers hold the statistics of only half of the rows at a time.
  static constexpr bool kInHalves = Drops<Shape> && Shape::kRows == 128;
  using HalfScores = float[kScores / 2];
  using HalfPacked = std::uint32_t[kSteps / 2][4];
  /// Whether changed scores are weighed one by one (changed_weights.cuh).
  static constexpr bool kWeighs = Caps<Shape> || Changes<Shape>;
  static constexpr int kEightsAtOnce = eights_at_once<Shape>();

 public:
  __device__ __forceinline__ ColumnConsumer(ColumnMemory<Shape>& shared, const ColumnArguments& arguments,
                                            const BiasMap* bias = nullptr)
      : shared_(shared),
        arguments_(arguments),
        group_(__shfl_sync(~0U, threadIdx.x / 128 - 1, 0)),
        mask_(shared.mask, arguments.mask, first_key()),
        bias_(bias) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      barrier_wait(&shared_.work_full[work_.slot], work_.phase);
      const int steps = shared_.work[work_.slot].steps;
      if (steps < 0) break;
      float grad_k[kGradients], grad_v[kGradients];
#pragma unroll
      for (int i = 0; i < kGradients; ++i) grad_k[i] = grad_v[i] = 0;
      pin(grad_k);
      pin(grad_v);
      if (steps > 0) attend(grad_k, grad_v, steps);
      store(grad_k, grad_v, shared_.work[work_.slot]);
      release(&shared_.work_done[work_.slot]);
      work_.advance();
    }
  }

 protected:
  static __device__ __forceinline__ int lane() { return lane_index(); }
  /// The first of the warp's 16 keys, counted from the tile's first.
  static __device__ __forceinline__ int first_key() { return (threadIdx.x / 32 - 4) * 16; }

  __device__ __forceinline__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ void attend(float (&grad_k)[kGradients], float (&grad_v)[kGradients], int steps) {
    begin_keys();
    barrier_wait(&shared_.k_full, tile_phase_);
    barrier_wait(&shared_.v_full, tile_phase_);
    if constexpr (Shape::kDelayed) {
      delayed_steps(grad_k, grad_v, steps);
    } else {
#pragma unroll 1
      for (int left = steps;;) {
        step<0>(grad_k, grad_v);
        if (--left == 0) break;
        step<1>(grad_k, grad_v);
        if (--left == 0) break;
      }
    }
    release(&shared_.k_empty);
    release(&shared_.v_empty);
    tile_phase_ ^= 1;
  }

  __device__ __forceinline__ void begin_keys() {
    const ColumnWork& work = shared_.work[work_.slot];
    mask_.begin_keys(work.list, work.column_tile * Shape::kColumns);
  }

  /// Every key tile begins at stage 0, so that stages are known at compile time.
  __device__ __forceinline__ void delayed_steps(float (&grad_k)[kGradients], float (&grad_v)[kGradients], int steps) {
    float grad_q[kQuerySums];
    delayed_step<0, true>(grad_k, grad_v, grad_q);
#pragma unroll 1
    for (int left = steps - 1;;) {
      if (left-- == 0) return finish_queries<0>(grad_q);
      delayed_step<1, false>(grad_k, grad_v, grad_q);
      if (left-- == 0) return finish_queries<1>(grad_q);
      delayed_step<0, false>(grad_k, grad_v, grad_q);
    }
  }

  /// Finishes after the last tile, which is in stage kStage: adds the kept gradient of q of the tile before it, then
  /// its own.
  template <int kStage>
  __device__ __forceinline__ void finish_queries(const float (&of_tile_before)[kQuerySums]) {
    float grad_q[kQuerySums];
    multiply_tile<kStage>(grad_q);
    add_kept_tile(of_tile_before);
    wgmma_wait<0>();
    pin(grad_q);
    release(&shared_.grad_s_empty[kStage]);
    add_to_queries(grad_q, tile_before_);
  }

  /// Computes a row tile and the gradient of q of the tile before, whose score gradients, half of them from the other
  /// warpgroup, have had time to reach shared memory. That product and the one for the gradient of k run while this
  /// tile's score gradients are stored. The result is added to global memory in the next step, after the product for
  /// the scores is issued: additions hold their registers until they have left, and every later read of shared memory
  /// waits for them, so lse and the mask's words are read first. Probabilities stay in float32. There is room for them
  /// because their gradients share registers with the gradient of q: its additions have left by then, and its next
  /// product is issued only after the gradients of the probabilities are used.
  template <int kStage, bool kFirst>
  __device__ __forceinline__ void delayed_step(float (&grad_k)[kGradients], float (&grad_v)[kGradients],
                                               float (&grad_q)[kQuerySums]) {
    static_assert(kScores == kQuerySums && !Drops<Shape>);
    float s[kScores];
    float(&grad_p)[kScores] = grad_q;
    std::uint32_t p[kSteps][4], grad_s[kSteps][4];
    Rows lse, dots;
    barrier_wait(&shared_.q_full[kStage], phases_.of(kStage));
    const RowStep row_step = shared_.steps[kStage];
    lse.load(shared_.lse_log2[kStage]);
    wgmma_fence();
    multiply_rows(s, shared_.k, shared_.q[kStage]);
    fetch_changes(row_step, kStage);
    std::uint32_t masked[Words::kWords];
    if (row_step.masked != 0) {
      if constexpr (Shape::kLeavesOut) {
        // Tested only after the product is issued: an earlier test would make every step wait for its RowStep.
        if ((row_step.masked >> group_ & 2) != 0) {
          wgmma_wait<0>();
          pin(s);
          return leave_out<kStage, kFirst>(grad_q, row_step.tile);
        }
      }
      load_words(masked, row_step, kStage);
    }
    if constexpr (!kFirst) add_kept_tile(grad_q);
    wgmma_wait<0>();
    pin(s);
    if constexpr (kWeighs) {
      weigh(s, p, masked, row_step, kStage, lse);
    } else {
      change(s, kStage);
      if (row_step.masked != 0) hide<Words>(as_unit(s), masked);
      exponentiate(as_unit(s), arguments_.product_log2, lse);
      pack<T>(as_unit(p), as_unit(s));
    }
    barrier_wait(&shared_.grad_o_full[kStage], phases_.of(kStage));
    wgmma_fence();
    multiply_rows(grad_p, shared_.v, shared_.grad_o[kStage]);
    multiply_scores(grad_v, p, shared_.grad_o[kStage]);
    dots.load(shared_.dot[kStage]);
    wgmma_wait<1>();
    pin(grad_p);
    differentiate(as_unit(grad_p), as_unit(s), dots);
    pack<T>(as_unit(grad_s), as_unit(grad_p));
    if constexpr (!kFirst) multiply_tile<1 - kStage>(grad_q);
    wgmma_fence();
    multiply_scores(grad_k, grad_s, shared_.q[kStage]);
    share_scores<kStage>(grad_s);
    wgmma_wait<1>();
    pin(grad_v);
    release(&shared_.grad_o_empty[kStage]);
    if constexpr (!kFirst) {
      pin(grad_q);
      release(&shared_.grad_s_empty[1 - kStage]);
    }
    keep_tile<kFirst>(row_step.tile);
    wgmma_wait<0>();
    pin(grad_k);
    release(&shared_.q_empty[kStage]);
    phases_.flip(kStage);
  }

  /// Issues the product for the gradient of q of the tile whose score gradients are in this stage, once both groups
  /// have stored theirs. The stage's phase has already flipped for its next tile.
  template <int kStage>
  __device__ __forceinline__ void multiply_tile(float (&grad_q)[kQuerySums]) {
    barrier_wait(&shared_.grad_s_full[kStage], phases_.of(kStage) ^ 1);
    wgmma_fence();
    multiply_columns(grad_q, shared_.grad_s[kStage]);
  }

  /// Stores the group's part of the score gradients, all of which both groups read in multiply_tile().
  template <int kStage>
  __device__ __forceinline__ void share_scores(const std::uint32_t (&grad_s)[kSteps][4]) {
    barrier_wait(&shared_.grad_s_empty[kStage], phases_.of(kStage) ^ 1);
    store_scores(shared_.grad_s[kStage], grad_s);
    fence_stores_for_async();
    release(&shared_.grad_s_full[kStage]);
  }

  __device__ __forceinline__ void add_kept_tile(const float (&grad_q)[kQuerySums]) {
    if (tile_to_add_ >= 0) add_to_queries(grad_q, tile_to_add_);
  }

  template <bool kFirst>
  __device__ __forceinline__ void keep_tile(int tile) {
    tile_to_add_ = kFirst ? -1 : tile_before_;
    tile_before_ = tile;
  }

  /// Replaces the rest of delayed_step() after the scores where the tile's rows see none of the group's keys: computes
  /// the gradient of q of the tile before, and stores zeros as the group's part of this tile's score gradients.
  template <int kStage, bool kFirst>
  __device__ __forceinline__ void leave_out(float (&grad_q)[kQuerySums], int tile) {
    if constexpr (!kFirst) {
      add_kept_tile(grad_q);
      multiply_tile<1 - kStage>(grad_q);
    }
    if constexpr (CopiesBias<Shape>) {
      if (bias_.exists()) {
        barrier_wait(shared_.bias_full, phases_.of(StagePhases::kBias));
        release(shared_.bias_empty);
        phases_.flip(StagePhases::kBias);
      }
    }
    const std::uint32_t zeros[kSteps][4] = {};
    share_scores<kStage>(zeros);
    // A stage may be released only when its copies have arrived.
    barrier_wait(&shared_.grad_o_full[kStage], phases_.of(kStage));
    release(&shared_.grad_o_empty[kStage]);
    release(&shared_.q_empty[kStage]);
    if constexpr (!kFirst) {
      wgmma_wait<0>();
      pin(grad_q);
      release(&shared_.grad_s_empty[1 - kStage]);
    }
    keep_tile<kFirst>(tile);
    phases_.flip(kStage);
  }

  /// Computes a row tile, including its gradient of q.
  template <int kStage>
  __device__ __forceinline__ void step(float (&grad_k)[kGradients], float (&grad_v)[kGradients]) {
    float s[kScores], grad_p[kScores];
    std::uint32_t p[kSteps][4], grad_s[kSteps][4];
    barrier_wait(&shared_.q_full[kStage], phases_.of(kStage));
    const RowStep row_step = shared_.steps[kStage];
    wgmma_fence();
    multiply_rows(s, shared_.k, shared_.q[kStage]);
    fetch_changes(row_step, kStage);
    barrier_wait(&shared_.grad_o_full[kStage], phases_.of(kStage));
    wgmma_fence();
    multiply_rows(grad_p, shared_.v, shared_.grad_o[kStage]);
    std::uint32_t masked[Words::kWords];
    if (row_step.masked != 0) load_words(masked, row_step, kStage);
    Dropped dropped;
    find_dropped(dropped, row_step, kStage, phases_.of(kStage));
    wgmma_wait<1>();
    pin(s);
    if constexpr (!kWeighs) {
      change(s, kStage);
      if (row_step.masked != 0) hide<Words>(as_unit(s), masked);
    }
    if constexpr (kInHalves) {
      exponentiate_half<0>(s, shared_.lse_log2[kStage]);
      barrier_wait(&shared_.q_full[kStage], phases_.of(kStage));
      exponentiate_half<1>(s, shared_.lse_log2[kStage]);
    } else if constexpr (!kWeighs) {
      Rows lse;
      lse.load(shared_.lse_log2[kStage]);
      exponentiate(as_unit(s), arguments_.product_log2, lse);
    }
    pin(s);
    // This wait passes at once; its branch keeps the compiler from moving the exponentials past the wait for the
    // product.
    barrier_wait(&shared_.grad_o_full[kStage], phases_.of(kStage));
    wgmma_wait<0>();
    pin(grad_p);
    if constexpr (kWeighs) {
      weigh_and_differentiate(s, grad_p, p, grad_s, masked, row_step, kStage, kStage, phases_.of(kStage));
    } else if constexpr (kInHalves) {
      differentiate_half<0>(p, grad_s, s, grad_p, dropped, shared_.dot[kStage]);
      barrier_wait(&shared_.grad_o_full[kStage], phases_.of(kStage));
      differentiate_half<1>(p, grad_s, s, grad_p, dropped, shared_.dot[kStage]);
    } else {
      find_gradients(grad_p, s, shared_.dot[kStage], dropped);
      if constexpr (Drops<Shape>) drop(as_unit(s), dropped);
      pack<T>(as_unit(p), as_unit(s));
      pack<T>(as_unit(grad_s), as_unit(grad_p));
    }
    wgmma_fence();
    multiply_scores(grad_v, p, shared_.grad_o[kStage]);
    store_scores(shared_.grad_s[kStage], grad_s);
    fence_stores_for_async();
    named_barrier(1, Shape::kGroups * 128);
    float grad_q[kQuerySums];
    wgmma_fence();
    multiply_columns(grad_q, shared_.grad_s[kStage]);
    multiply_scores(grad_k, grad_s, shared_.q[kStage]);
    wgmma_wait<1>();
    pin(grad_q);
    release(&shared_.grad_o_empty[kStage]);
    add_to_queries(grad_q, row_step.tile);
    wgmma_wait<0>();
    pin(grad_k);
    pin(grad_v);
    release(&shared_.q_empty[kStage]);
    phases_.flip(kStage);
  }

  /// Turns the scores of half of the rows into probabilities. `lse_log2`: for all rows of the tile.
  template <int kHalf>
  __device__ __forceinline__ void exponentiate_half(float (&s)[kScores], const float* lse_log2) const {
    HalfRows lse;
    lse.load(lse_log2 + kHalf * Shape::kRows / 2);
    exponentiate(as_unit(reinterpret_cast<HalfScores&>(s[kHalf * kScores / 2])), arguments_.product_log2, lse);
  }

  /// Makes both packed operands for half of the rows from probabilities and their gradients. `dots`: for all rows of
  /// the tile.
  template <int kHalf>
  __device__ __forceinline__ void differentiate_half(std::uint32_t (&p)[kSteps][4], std::uint32_t (&grad_s)[kSteps][4],
                                                     float (&s)[kScores], float (&grad_p)[kScores],
                                                     const Dropped& dropped, const float* dots) const {
    auto& own = reinterpret_cast<HalfScores&>(s[kHalf * kScores / 2]);
    auto& grad = reinterpret_cast<HalfScores&>(grad_p[kHalf * kScores / 2]);
    auto& packed = reinterpret_cast<HalfPacked&>(p[kHalf * kSteps / 2]);
    const DroppedWords<1, Shape::kRows / 2> of_half{{dropped.words[kHalf]}};
    HalfRows own_dots;
    own_dots.load(dots + kHalf * Shape::kRows / 2);
    drop(as_unit(grad), of_half);
    differentiate(as_unit(grad), as_unit(own), own_dots, arguments_.dropout.scale);
    pack<T>(as_unit(packed), as_unit(own));
    drop(as_unit(packed), of_half);
    pack<T>(as_unit(reinterpret_cast<HalfPacked&>(grad_s[kHalf * kSteps / 2])), as_unit(grad));
  }

  /// Starts to fetch what change() reads for a stage's rows. Called ahead of their product.
  __device__ __forceinline__ void fetch_changes(const RowStep& step, int stage) const {
    if constexpr (AddsBias<Shape>) {
      if (bias_.exists() || shares_entries(arguments_.bias)) return;
      BiasValues<1, Shape::kRows / 8, TransposedPlace>(arguments_.bias, place_of(step, stage)).prefetch();
    }
  }

  /// Calls body(weigh) with what weighs the changed scores of a stage's rows.
  template <class OfRows, class Body>
  __device__ __forceinline__ void with_weights(const RowStep& step, int stage, const OfRows& lse,
                                               const Body& body) const {
    if constexpr (Changes<Shape>) {
      const TransposedPlace place = place_of(step, stage);
      const auto change = change_at<typename Shape::Change>(arguments_.change, place);
      body(change_weights<1, Shape::kRows / 8>(change, arguments_.bias, place, lse));
    } else {
      body(CappedWeights{arguments_.softcap.to_exponent, arguments_.product_log2, lse});
    }
  }

  /// Changes scores, packs their probabilities, and leaves these times the derivatives of the change.
  __device__ __forceinline__ void weigh(float (&s)[kScores], std::uint32_t (&p)[kSteps][4],
                                        const std::uint32_t (&masked)[Words::kWords], const RowStep& step, int stage,
                                        const Rows& lse) const {
    const auto keep = [&](int, int eight, int pair, float a, float b) {
      p[eight / 2][eight % 2 * 2 + pair] = pack<T>(a, b);
    };
    with_weights(step, stage, lse, [&](const auto& weigh) {
      if (step.masked != 0)
        weigh_changed<true, Words>(as_unit(s), masked, weigh, keep);
      else
        weigh_changed<false, Words>(as_unit(s), masked, weigh, keep);
    });
  }

  /// Does so where the gradients of the probabilities are there too, and packs those of the scores. `gradient`: the
  /// stage of the output's gradient, `phase` its barrier's, which has passed.
  __device__ __forceinline__ void weigh_and_differentiate(const float (&s)[kScores], const float (&grad_p)[kScores],
                                                          std::uint32_t (&p)[kSteps][4],
                                                          std::uint32_t (&grad_s)[kSteps][4],
                                                          const std::uint32_t (&masked)[Words::kWords],
                                                          const RowStep& step, int stage, int gradient,
                                                          std::uint32_t phase) const {
    const auto keep = [&](int, int eight, int pair, float a, float b) {
      p[eight / 2][eight % 2 * 2 + pair] = pack<T>(a, b);
    };
    const auto pause = [&] { barrier_wait(&shared_.grad_o_full[gradient], phase); };
    const StoredTransposedRowNumbers lse{shared_.lse_log2[stage]}, dots{shared_.dot[gradient]};
    const auto zero = static_cast<std::uint32_t>(step.masked >> 16);
    with_weights(step, stage, lse, [&](const auto& weigh) {
      if (step.masked != 0)
        weigh_and_differentiate_changed<T, true, Words, kEightsAtOnce>(as_unit(s), as_unit(grad_p), as_unit(grad_s),
                                                                       masked, weigh, dots, keep, pause, zero);
      else
        weigh_and_differentiate_changed<T, false, Words, kEightsAtOnce>(as_unit(s), as_unit(grad_p), as_unit(grad_s),
                                                                        masked, weigh, dots, keep, pause, zero);
    });
  }

  /// Biases the scores of a stage's rows, ahead of hiding.
  __device__ __forceinline__ void change(float (&s)[kScores], int stage) {
    if constexpr (Biases<Shape>) {
      const ColumnWork& work = shared_.work[work_.slot];
      const float origin = key_position(arguments_.alibi, work.batch, work.keys.first);
      RowNumbers<1> keys;
#pragma unroll
      for (int key = 0; key < 2; ++key)
        keys.numbers[0][key] =
            shared_.slopes[stage] *
            (key_position(arguments_.alibi, work.batch, work.keys.first + first_key() + lane() / 4 + 8 * key) - origin);
      bias_by_distance(as_unit(s), keys, shared_.marks[stage], shared_.slopes[stage]);
    }
    if constexpr (CopiesBias<Shape>) {
      if (bias_.exists()) return add_copied_bias(s);
    }
    if constexpr (AddsBias<Shape>) {
      if (shares_entries(arguments_.bias)) return shared_.near[stage].add_to(as_unit(s), first_key() + lane() / 4);
      BiasParts<Shape::kRows / 8, TransposedPlace>(arguments_.bias, place_of(shared_.steps[stage], stage))
          .add_to(as_unit(s));
    }
  }

  __device__ __forceinline__ void add_copied_bias(float (&s)[kScores]) {
    barrier_wait(shared_.bias_full, phases_.of(StagePhases::kBias));
    add_panel_transposed<T>(s, shared_.bias[group_], first_key() % kPanel / 8, arguments_.bias.to_products);
    __syncwarp();
    if (lane() == 0) barrier_arrive_behind(shared_.bias_empty, word_behind(s));
    phases_.flip(StagePhases::kBias);
  }

  __device__ __forceinline__ TransposedPlace place_of(const RowStep& step, int stage) const {
    const ColumnWork& work = shared_.work[work_.slot];
    return {work.batch, shared_.heads[stage], step.row_tile * Shape::kRows, work.keys.first + first_key()};
  }

  __device__ __forceinline__ void load_words(std::uint32_t (&masked)[Words::kWords], const RowStep& step, int stage) {
    const int first_key = shared_.work[work_.slot].column_tile * Shape::kColumns;
    mask_.load(masked, {step.list, step.row_tile * Shape::kRows, first_key, stage});
  }

  /// Finds which of the thread's scores dropout drops in the rows of a stage. Called while products run. The waits at
  /// the barrier pass at once: their branches keep the compiler from moving the draws in between the products'
  /// instructions or past the wait for the products.
  __device__ __forceinline__ void find_dropped(Dropped& dropped, const RowStep& step, int stage, std::uint32_t phase) {
    if constexpr (!Drops<Shape>) return;
    barrier_wait(&shared_.q_full[stage], phase);
    const ColumnWork& work = shared_.work[work_.slot];
    find_dropped_transposed(dropped, arguments_.dropout, work.batch, shared_.heads[stage],
                            work.column_tile * Shape::kColumns + first_key(), step.row_tile * Shape::kRows);
    barrier_wait(&shared_.q_full[stage], phase);
  }

  /// Turns gradients of probabilities into gradients of scores. `dots`: of the tile's rows.
  __device__ __forceinline__ void find_gradients(float (&grad_p)[kScores], const float (&p)[kScores], const float* dots,
                                                 const Dropped& dropped) const {
    Rows of_rows;
    of_rows.load(dots);
    if constexpr (Drops<Shape>) {
      drop(as_unit(grad_p), dropped);
      differentiate(as_unit(grad_p), as_unit(p), of_rows, arguments_.dropout.scale);
    } else {
      differentiate(as_unit(grad_p), as_unit(p), of_rows);
    }
  }

  /// s = columns rowsᵀ for the group's keys: transposed scores from K and Q, or gradients of probabilities from V and
  /// the gradient of O.
  __device__ __forceinline__ void multiply_rows(float (&s)[kScores], const std::uint8_t* columns,
                                                const std::uint8_t* rows) {
    multiply_tiles<T, Shape::kHeadDim, kColumnPanel, kRowPanel>(s, shared_address(columns) + group_ * 64 * kPanel * 2,
                                                                rows);
  }

  /// d += p rows, for packed transposed scores.
  __device__ __forceinline__ void multiply_scores(float (&d)[kGradients], const std::uint32_t (&p)[kSteps][4],
                                                  const std::uint8_t* rows) {
    multiply_packed<T, kRowPanel>(d, p, rows);
  }

  /// Computes the group's 64 columns, or 64 rows, of the gradient of q: the gradients of all the tile's scores times K.
  __device__ __forceinline__ void multiply_columns(float (&grad_q)[kQuerySums], const std::uint8_t* grad_s) {
    constexpr bool kSplitsRows = Shape::kRows == 128;
    const TileDescriptor a(shared_address(grad_s) + (kSplitsRows ? group_ * 64 * kPanel * 2 : 0), 16);
    const TileDescriptor b(shared_address(shared_.k) + (kSplitsRows ? 0 : group_ * kColumnPanel), 16);
#pragma unroll
    for (int step = 0; step < Shape::kColumns / 16; ++step)
      Products<T, 64>::template ss<1>(grad_q, a.at(step / 4 * kRowPanel + step % 4 * 32), b.at(step * 16 * kPanel * 2),
                                      step > 0);
    wgmma_commit();
  }

  /// Stores score gradients transposed: one row per query, one panel of 64 keys per group, in wgmma's swizzle.
  __device__ __forceinline__ void store_scores(std::uint8_t* tile, const std::uint32_t (&packed)[kSteps][4]) {
    const int in_matrix = lane() % 8, matrix = lane() / 8, warp = threadIdx.x % 128 / 32;
    const std::uint32_t row = matrix / 2 * 8 + in_matrix, chunk = (2 * warp + matrix % 2) ^ in_matrix;
    const std::uint32_t address = shared_address(tile) + group_ * kRowPanel + row * kPanel * 2 + chunk * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) store_matrices_transposed(address + step * 16 * kPanel * 2, packed[step]);
  }

  /// Adds to the sums in accumulator layout, 16 bytes per thread at a time; RowEpilogue sorts them into rows.
  __device__ __forceinline__ void add_to_queries(const float (&grad_q)[kQuerySums], int tile) {
    float* sums = arguments_.query_sums + static_cast<std::int64_t>(tile) * Shape::kTileSums +
                  (group_ * kQuerySums * 128 + threadIdx.x % 128 * 4);
#pragma unroll
    for (int i = 0; i < kQuerySums / 4; ++i)
      add_to_global(sums + i * 512, grad_q[4 * i], grad_q[4 * i + 1], grad_q[4 * i + 2], grad_q[4 * i + 3]);
  }

  template <int kOfKeys, int kOfValues>
  __device__ __forceinline__ void store(const float (&grad_k)[kOfKeys], const float (&grad_v)[kOfValues],
                                        const ColumnWork& tile) {
    if (arguments_.float32_gradients)
      store_as<float>(grad_k, grad_v, tile);
    else
      store_as<T>(grad_k, grad_v, tile);
  }

  template <class Out, int kOfKeys, int kOfValues>
  __device__ __forceinline__ void store_as(const float (&grad_k)[kOfKeys], const float (&grad_v)[kOfValues],
                                           const ColumnWork& tile) {
    const ColumnArguments& to = arguments_;
    const int first = tile.keys.first + first_key() + lane() / 4, end = tile.keys.end;
    Out* k = static_cast<Out*>(to.grad_k) + tile.batch * to.grad_k_batch + tile.kv_head * to.grad_k_head;
    Out* v = static_cast<Out*>(to.grad_v) + tile.batch * to.grad_v_batch + tile.kv_head * to.grad_v_head;
    if constexpr (Shape::kOfKeys) store_rows(grad_k, {to.scale, to.scale}, k, to.grad_k_row, first, end, to.head_dim);
    if constexpr (Shape::kOfValues) {
      const float factor = Drops<Shape> ? to.dropout.scale : 1;
      store_rows(grad_v, {factor, factor}, v, to.grad_v_row, first, end, to.value_dim);
    }
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  int group_;
  Mask mask_;
  int tile_before_;  // the tile whose gradient of q is not computed yet
  int tile_to_add_;  // the tile whose gradient of q is in registers, not added yet; -1: none
  std::uint32_t tile_phase_ = 0;
  RingPosition<Shape::kStages> work_;
  StagePhases phases_;
  [[no_unique_address]] CopiedBias<Shape> bias_;
};

}  // namespace flashmask::cuda::sm90
