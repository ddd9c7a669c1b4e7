// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/backward/column_consumer.cuh"

namespace flashmask::cuda::sm90 {

/// A warpgroup of the column kernel that does not compute the gradient of q. A row tile's products for the gradients of
/// k and v run during the scores of the next row tile, so its stages stay in use until then. A gradient that the shape
/// does not compute is an array of one number, never used.
template <class Shape>
class CarriedColumnConsumer : ColumnConsumer<Shape> {
  using Base = ColumnConsumer<Shape>;
  using Base::kScores, Base::kGradients, Base::kSteps, Base::shared_, Base::work_, Base::tile_phase_, Base::release,
      Base::arguments_;
  using typename Base::Words, typename Base::T, typename Base::Dropped;
  static constexpr bool kOfKeys = Shape::kOfKeys, kOfValues = Shape::kOfValues;
  /// With 128 rows, capped scores wait for the gradients of their probabilities: registers hold either.
  static constexpr bool kAtOnce = Caps<Shape> && Shape::kRows == 128;
  using KeyGradient = float[kOfKeys ? kGradients : 1];
  using ValueGradient = float[kOfValues ? kGradients : 1];
  using Packed = std::uint32_t[kSteps][4];

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    for (;;) {
      barrier_wait(&shared_.work_full[work_.slot], work_.phase);
      const ColumnWork& work = shared_.work[work_.slot];
      const int steps = work.steps;
      if (steps < 0) break;
      KeyGradient grad_k;
      ValueGradient grad_v;
      clear(grad_k);
      clear(grad_v);
      if (steps > 0) attend(grad_k, grad_v, steps);
      Base::store(grad_k, grad_v, work);
      release(&shared_.work_empty[work_.slot]);
      work_.advance();
    }
  }

 private:
  template <int kCount>
  static __device__ __forceinline__ void clear(float (&gradient)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) gradient[i] = 0;
    pin(gradient);
  }

  __device__ __forceinline__ void attend(KeyGradient& grad_k, ValueGradient& grad_v, int steps) {
    Packed p, grad_s;
    Base::begin_keys();
    queries_.begin();
    gradients_.begin();
    barrier_wait(&shared_.k_full, tile_phase_);
    if constexpr (kOfKeys) barrier_wait(&shared_.v_full, tile_phase_);
    step<true>(grad_k, grad_v, p, grad_s);
#pragma unroll 1
    for (int left = steps - 1; left > 0; --left) step<false>(grad_k, grad_v, p, grad_s);
    add_products(grad_k, grad_v, p, grad_s);
    wgmma_wait<0>();
    finish_products(grad_k, grad_v);
    release(&shared_.k_empty);
    if constexpr (kOfKeys) release(&shared_.v_empty);
    tile_phase_ ^= 1;
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(KeyGradient& grad_k, ValueGradient& grad_v, Packed& p, Packed& grad_s) {
    if constexpr (!kFirst) add_products(grad_k, grad_v, p, grad_s);
    float s[kScores];
    const int stage = kFirst || !kOfKeys ? queries_.stage() : queries_.next();
    barrier_wait(&shared_.q_full[stage], queries_.phase(stage));
    const RowStep row_step = shared_.steps[stage];
    wgmma_fence();
    Base::multiply_rows(s, shared_.k, shared_.q[stage]);
    std::uint32_t masked[Words::kWords];
    if (row_step.masked != 0) Base::load_words(masked, row_step, stage);
    Dropped dropped;
    Base::find_dropped(dropped, row_step, stage, queries_.phase(stage));
    if constexpr (!kFirst) {
      wgmma_wait<1>();
      finish_products(grad_k, grad_v);
    }
    if constexpr (kOfKeys) {
      float grad_p[kScores];
      const int gradient = gradients_.stage();
      barrier_wait(&shared_.grad_o_full[gradient], gradients_.phase(gradient));
      wgmma_fence();
      Base::multiply_rows(grad_p, shared_.v, shared_.grad_o[gradient]);
      wgmma_wait<1>();
      if constexpr (kAtOnce)
        pin(s);
      else
        find_probabilities(s, p, masked, row_step, stage);
      // This wait passes at once; its branch keeps the compiler from moving the exponentials past the wait for the
      // product.
      barrier_wait(&shared_.grad_o_full[gradient], gradients_.phase(gradient));
      wgmma_wait<0>();
      pin(grad_p);
      if constexpr (kAtOnce) {
        Base::weigh_and_differentiate(s, grad_p, p, grad_s, masked, row_step, stage, gradient,
                                      gradients_.phase(gradient));
      } else if constexpr (Base::kInHalves) {
        Base::template differentiate_half<0>(p, grad_s, s, grad_p, dropped, shared_.dot[gradient]);
        barrier_wait(&shared_.grad_o_full[gradient], gradients_.phase(gradient));
        Base::template differentiate_half<1>(p, grad_s, s, grad_p, dropped, shared_.dot[gradient]);
      } else {
        Base::find_gradients(grad_p, s, shared_.dot[gradient], dropped);
        pack<T>(as_unit(grad_s), as_unit(grad_p));
      }
      if constexpr (!kOfValues) let_go(shared_.grad_o_empty, gradients_);
    } else {
      wgmma_wait<0>();
      find_probabilities(s, p, masked, row_step, stage);
      let_go(shared_.q_empty, queries_);
    }
    if constexpr (kOfValues && !Base::kInHalves) {
      if constexpr (Drops<Shape>) drop(as_unit(s), dropped);
      if constexpr (!Caps<Shape>) pack<T>(as_unit(p), as_unit(s));
    }
  }

  /// Where scores are capped, also packs probabilities, and leaves them times the derivatives of the cap.
  __device__ __forceinline__ void find_probabilities(float (&s)[kScores], Packed& p,
                                                     const std::uint32_t (&masked)[Words::kWords],
                                                     const RowStep& row_step, int stage) {
    pin(s);
    if constexpr (Caps<Shape>) {
      typename Base::Rows lse;
      lse.load(shared_.lse_log2[stage]);
      return Base::weigh(s, p, masked, row_step, stage, lse);
    }
    Base::change(s, stage);
    if (row_step.masked != 0) hide<Words>(as_unit(s), masked);
    if constexpr (Base::kInHalves) {
      Base::template exponentiate_half<0>(s, shared_.lse_log2[stage]);
      barrier_wait(&shared_.q_full[stage], queries_.phase(stage));
      Base::template exponentiate_half<1>(s, shared_.lse_log2[stage]);
    } else {
      typename Base::Rows lse;
      lse.load(shared_.lse_log2[stage]);
      exponentiate(as_unit(s), arguments_.product_log2, lse);
    }
    pin(s);
  }

  __device__ __forceinline__ void add_products(KeyGradient& grad_k, ValueGradient& grad_v, const Packed& p,
                                               const Packed& grad_s) {
    const int gradient = gradients_.stage();
    if constexpr (!kOfKeys) barrier_wait(&shared_.grad_o_full[gradient], gradients_.phase(gradient));
    pin(grad_k);
    pin(grad_v);
    wgmma_fence();
    if constexpr (kOfValues) Base::multiply_scores(grad_v, p, shared_.grad_o[gradient]);
    if constexpr (kOfKeys) Base::multiply_scores(grad_k, grad_s, shared_.q[queries_.stage()]);
  }

  __device__ __forceinline__ void finish_products(KeyGradient& grad_k, ValueGradient& grad_v) {
    pin(grad_k);
    pin(grad_v);
    if constexpr (kOfKeys) let_go(shared_.q_empty, queries_);
    if constexpr (kOfValues) let_go(shared_.grad_o_empty, gradients_);
  }

  template <int kStages>
  __device__ __forceinline__ void let_go(std::uint64_t (&empty)[kStages], StagePosition<kStages>& position) {
    release(&empty[position.stage()]);
    position.advance();
  }

  StagePosition<Shape::kStages> queries_;
  StagePosition<Shape::kGradientStages> gradients_;
};

}  // namespace flashmask::cuda::sm90
