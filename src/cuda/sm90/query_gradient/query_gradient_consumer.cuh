// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/sm90/query_gradient/query_gradient_shape.cuh"
#include "cuda/sm90/rows/row_consumer.cuh"

namespace flashmask::cuda::sm90 {

/// A warpgroup of the gradient of q: recomputes the probabilities p from the scores, computes their gradients from
/// grad_o vᵀ, and sums grad_s k over the tiles.
template <class Shape>
class QueryGradientConsumer : RowConsumer<Shape> {
  using Base = RowConsumer<Shape>;
  using Base::kScores, Base::kSteps, Base::shared_, Base::row_, Base::work_, Base::queries_, Base::keys_, Base::values_,
      Base::release;
  using typename Base::T, typename Base::Dropped;
  static constexpr int kGradients = Shape::kHeadDim / 2;
  static constexpr bool kChanges = Caps<Shape> || Biases<Shape>;

 public:
  __device__ __forceinline__ QueryGradientConsumer(RowMemory<Shape>& shared, const QueryGradientArguments& arguments,
                                                   const RowTensors&)
      : Base(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    float grad_q[kGradients];
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
#pragma unroll
      for (int i = 0; i < kGradients; ++i) grad_q[i] = 0;
      Base::find_row_marks(row_marks_, slope_, work, arguments_.score.alibi);
      Base::begin_tile(work, arguments_.score.dropout);
      if (work.tiles() > 0) {
        load_statistics(work.tile);
        sum_tiles(grad_q, work);
      }
      store(grad_q, Base::kept(work));
    }
  }

 private:
  __device__ __forceinline__ void load_statistics(const RowTile& tile) {
    const std::int64_t flat_head = static_cast<std::int64_t>(tile.batch) * arguments_.query_heads + tile.head;
    const int first = tile.row_tile * Shape::kRows + row_;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const bool exists = first + 8 * row < arguments_.query_length;
      const std::int64_t at = flat_head * arguments_.statistics.padded + first + 8 * row;
      lse_log2_.numbers[0][row] = exists ? __ldg(arguments_.statistics.lse_log2 + at) : INFINITY;
      dot_.numbers[0][row] = exists ? __ldg(arguments_.statistics.dot + at) : 0;
    }
  }

  /// The product of one tile overlaps the scores of the next.
  __device__ __forceinline__ void sum_tiles(float (&grad_q)[kGradients], const Work& work) {
    std::uint32_t grad_s[kSteps][4];
    barrier_wait(&shared_.q_full[queries_.slot], queries_.phase);
    first_tile(grad_s, work.masked_tiles > 0);
#pragma unroll 1
    for (int tile = 1; tile < work.masked_tiles; ++tile) next_tile<true>(grad_q, grad_s);
    const int full_tiles = work.full_tiles - (work.masked_tiles == 0 ? 1 : 0);
#pragma unroll 1
    for (int tile = 0; tile < full_tiles; ++tile) next_tile<false>(grad_q, grad_s);
    release(&shared_.q_empty[queries_.slot]);
    queries_.advance();
    pin(grad_q);
    wgmma_fence();
    multiply_grad_s(grad_q, grad_s);
    wgmma_wait<0>();
    pin(grad_q);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
  }

  __device__ __forceinline__ void first_tile(std::uint32_t (&grad_s)[kSteps][4], bool masked) {
    float s[kScores], grad_p[kScores];
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_fence();
    multiply_values(grad_p);
    Dropped dropped;
    Base::find_dropped(dropped, arguments_.score.dropout);
    wgmma_wait<1>();
    pin(s);
    std::uint32_t bits[RowWords::kWords];
    if constexpr (kChanges) {
      if (masked) {
        Base::take_bits(bits);
        return finish_changed_tile<true>(grad_s, s, grad_p, bits);
      }
      return finish_changed_tile<false>(grad_s, s, grad_p, bits);
    }
    if (masked) {
      Base::take_bits(bits);
      hide<RowWords>(as_unit(s), bits);
    }
    exponentiate(as_unit(s), arguments_.score.scale_log2, lse_log2_);
    finish_tile(grad_s, s, grad_p, dropped);
  }

  /// Issues the products of a tile after grad_s k of the tile before.
  template <bool kMasked>
  __device__ __forceinline__ void next_tile(float (&grad_q)[kGradients], std::uint32_t (&grad_s)[kSteps][4]) {
    float s[kScores], grad_p[kScores];
    pin(grad_q);
    wgmma_fence();
    multiply_grad_s(grad_q, grad_s);
    std::uint64_t* const before = &shared_.k_empty[keys_.slot];
    keys_.advance();
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    std::uint32_t masked[RowWords::kWords];
    if constexpr (kMasked) Base::take_bits(masked);
    Dropped dropped;
    Base::find_dropped(dropped, arguments_.score.dropout);
    if constexpr (Shape::kSharesRegisters) finish_sum<1>(grad_q, before);
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_fence();
    multiply_values(grad_p);
    if constexpr (!Shape::kSharesRegisters) finish_sum<2>(grad_q, before);
    wgmma_wait<1>();
    pin(s);
    if constexpr (kChanges) return finish_changed_tile<kMasked>(grad_s, s, grad_p, masked);
    if constexpr (kMasked) hide<RowWords>(as_unit(s), masked);
    exponentiate(as_unit(s), arguments_.score.scale_log2, lse_log2_);
    finish_tile(grad_s, s, grad_p, dropped);
  }

  /// Waits for grad_s k of the tile before; kPending products have been issued since.
  template <int kPending>
  __device__ __forceinline__ void finish_sum(float (&grad_q)[kGradients], std::uint64_t* keys_empty) {
    wgmma_wait<kPending>();
    pin(grad_q);
    release(keys_empty);
  }

  /// Waits for grad_p, then packs grad_s = p ∘ (grad_p − dot).
  __device__ __forceinline__ void finish_tile(std::uint32_t (&grad_s)[kSteps][4], float (&p)[kScores],
                                              float (&grad_p)[kScores], const Dropped& dropped) {
    pin(p);
    // This wait passes at once; its branch keeps the compiler from moving the exponentials past the wait for the
    // product.
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    await_values(grad_p);
    if constexpr (Drops<Shape>) {
      drop(as_unit(grad_p), dropped);
      differentiate(as_unit(grad_p), as_unit(p), dot_, arguments_.score.dropout.scale);
    } else {
      differentiate(as_unit(grad_p), as_unit(p), dot_);
    }
    pack<T>(as_unit(grad_s), as_unit(grad_p));
  }

  __device__ __forceinline__ void await_values(float (&grad_p)[kScores]) {
    wgmma_wait<0>();
    pin(grad_p);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
  }

  /// Finishes a tile whose scores are still to be changed, since registers hold either products or probabilities.
  template <bool kMasked>
  __device__ __forceinline__ void finish_changed_tile(std::uint32_t (&grad_s)[kSteps][4], const float (&s)[kScores],
                                                      float (&grad_p)[kScores],
                                                      const std::uint32_t (&masked)[RowWords::kWords]) {
    await_values(grad_p);
    const auto run = [&](const auto& weigh) {
      weigh_and_differentiate_changed<T, kMasked, RowWords>(
          as_unit(s), as_unit(grad_p), as_unit(grad_s), masked, weigh, dot_, [](int, int, int, float, float) {},
          [&] { barrier_wait(&shared_.k_full[keys_.slot], keys_.phase); });
    };
    const float& scale_log2 = arguments_.score.scale_log2;
    if constexpr (Caps<Shape>)
      run(CappedWeights{arguments_.score.to_exponent, scale_log2, lse_log2_});
    else
      run(DistancedWeights{row_marks_, shared_.marks[keys_.slot], slope_, scale_log2, lse_log2_});
  }

  /// s = q kᵀ
  __device__ __forceinline__ void multiply_keys(float (&s)[kScores]) {
    Base::template multiply_by_keys<Shape::kHeadDim>(s, shared_.q[queries_.slot], shared_.k[keys_.slot]);
  }

  /// grad_p = grad_o vᵀ
  __device__ __forceinline__ void multiply_values(float (&grad_p)[kScores]) {
    const std::uint8_t* grad_o = shared_.q[queries_.slot] + Shape::kRows * Shape::kHeadDim * 2;
    Base::template multiply_by_keys<Shape::kValueDim>(grad_p, grad_o, shared_.v[values_.slot]);
  }

  /// grad_q += grad_s k
  __device__ __forceinline__ void multiply_grad_s(float (&grad_q)[kGradients],
                                                  const std::uint32_t (&grad_s)[kSteps][4]) {
    Base::template multiply_scores<Shape::kHeadDim>(grad_q, grad_s, shared_.k[keys_.slot]);
  }

  __device__ __forceinline__ void store(const float (&grad_q)[kGradients], const Work& work) {
    const RowTile& tile = work.tile;
    T* out =
        static_cast<T*>(arguments_.grad_q) + tile.batch * arguments_.grad_q_batch + tile.head * arguments_.grad_q_head;
    const float factor[2] = {arguments_.score.scale, arguments_.score.scale};
    store_rows(grad_q, factor, out, arguments_.grad_q_row, work.rows.first + row_, work.rows.end, arguments_.head_dim);
  }

  const QueryGradientArguments& arguments_;
  RowNumbers<1> lse_log2_, dot_;  // the statistics of the thread's two rows
  RowNumbers<1> row_marks_;       // of these rows, for kernels that bias scores
  float slope_;                   // of their head, the same
};

}  // namespace flashmask::cuda::sm90
