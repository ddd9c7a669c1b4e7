#pragma once

#include "cuda/sm90/forward_shape.cuh"
#include "cuda/sm90/row_consumer.cuh"
#include "cuda/sm90/store_rows.cuh"

namespace flashmask::cuda::sm90 {

constexpr float kRescaleThreshold = 8;  // in powers of two that the running maximum may lag behind

/// A warpgroup of the forward: scores, softmax, output.
template <class Shape>
class ForwardConsumer : RowConsumer<Shape> {
  using Base = RowConsumer<Shape>;
  using Base::kScores, Base::kSteps, Base::shared_, Base::group_, Base::row_, Base::work_, Base::queries_, Base::keys_,
      Base::values_, Base::lane, Base::release;
  using typename Base::T;
  static constexpr int kOutputs = Shape::kValueDim / 2;

 public:
  __device__ __forceinline__ ForwardConsumer(RowMemory<Shape>& shared, const ForwardArguments& arguments)
      : Base(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    float o[kOutputs];
    if (group_ + 1 == Shape::kGroups) pass_turn();
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      begin_rows(o);
      if (work.masked_tiles + work.full_tiles > 0) attend(o, work);
      finish_rows(o, work.tile);
    }
  }

 private:
  /// Warpgroups ask for their products one after the other, so that one computes exponentials while the other
  /// multiplies.
  __device__ __forceinline__ void await_turn() {
    if constexpr (Shape::kTakesTurns) named_barrier(1 + group_, 2 * 128);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Shape::kTakesTurns) named_barrier_arrive(1 + (group_ + 1) % Shape::kGroups, 2 * 128);
  }

  __device__ __forceinline__ void begin_rows(float (&o)[kOutputs]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  /// The products of one tile overlap the softmax of the next.
  __device__ __forceinline__ void attend(float (&o)[kOutputs], const Work& work) {
    std::uint32_t p[kSteps][4];
    barrier_wait(&shared_.q_full[queries_.slot], queries_.phase);
    first_tile(p, work.masked_tiles > 0);
#pragma unroll 1
    for (int tile = 1; tile < work.masked_tiles; ++tile) next_tile<true>(o, p);
    const int full_tiles = work.full_tiles - (work.masked_tiles == 0 ? 1 : 0);
#pragma unroll 1
    for (int tile = 0; tile < full_tiles; ++tile) next_tile<false>(o, p);
    release(&shared_.q_empty[queries_.slot]);
    queries_.advance();
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    pin(o);
    wgmma_fence();
    multiply_values(o, p);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
  }

  __device__ __forceinline__ void first_tile(std::uint32_t (&p)[kSteps][4], bool masked) {
    float s[kScores];
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    wgmma_wait<0>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    if (masked) {
      std::uint32_t bits[2];
      Base::take_bits(bits);
      Base::hide(s, bits);
    }
    float factor[2];
    raise_maximum(s, factor);
    exponentiate(s);
    Base::round(p, s);
  }

  template <bool kMasked>
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
    wgmma_wait<1>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    if constexpr (kMasked) Base::hide(s, bits);
    float factor[2];
    const bool raised = raise_maximum(s, factor);
    exponentiate(s);
    pin(s);
    // Has passed long ago: a branch here keeps the exponentials from sinking behind the wait for the product.
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
    Base::round(p, s);
    if (raised) rescale(o, factor);
  }

  /// s = q kᵀ
  __device__ __forceinline__ void multiply_keys(float (&s)[kScores]) {
    Base::template multiply_by_keys<Shape::kHeadDim>(s, shared_.q[queries_.slot], shared_.k[keys_.slot]);
  }

  /// o += p v
  __device__ __forceinline__ void multiply_values(float (&o)[kOutputs], const std::uint32_t (&p)[kSteps][4]) {
    Base::template multiply_scores<Shape::kValueDim>(o, p, shared_.v[values_.slot]);
  }

  /// Follows the maxima of the rows once they grew by more than the threshold; `factor` is what sums so far then shrink
  /// by. A lagging maximum changes no result but for rounding, as numerator and denominator share it.
  __device__ __forceinline__ bool raise_maximum(const float (&s)[kScores], float (&factor)[2]) {
    // Two chains a row: one alone waits for itself.
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

  __device__ __forceinline__ void exponentiate(float (&s)[kScores]) {
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; ++row)
      shift[row] = maximum_[row] == -INFINITY ? 0 : maximum_[row] * arguments_.scale_log2;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_approximate(fmaf(s[i], arguments_.scale_log2, -shift[i % 4 / 2]));
      sum_[i % 4 / 2] += s[i];
    }
  }

  __device__ __forceinline__ void rescale(float (&o)[kOutputs], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i % 4 / 2];
  }

  __device__ __forceinline__ void finish_rows(float (&o)[kOutputs], const RowTile& tile) {
    float inverse[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 1);
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 2);
      inverse[row] = sum_[row] > 0 ? 1 / sum_[row] : 0;
    }
    const int first = tile.row_tile * Shape::kRows + row_;
    if (lane() % 4 == 0) store_lse(tile, first);
    T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
    sm90::store_rows(o, inverse, out, arguments_.o_row, first, arguments_.query_length, arguments_.value_dim);
  }

  __device__ __forceinline__ void store_lse(const RowTile& tile, int first) {
    float* lse = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
    constexpr float kLn2 = 0.693147180559945F;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (first + 8 * row >= arguments_.query_length) continue;
      lse[first + 8 * row] =
          sum_[row] > 0 ? (maximum_[row] * arguments_.scale_log2 + log2f(sum_[row])) * kLn2 : -INFINITY;
    }
  }

  const ForwardArguments& arguments_;
  float maximum_[2], sum_[2];
};

}  // namespace flashmask::cuda::sm90
