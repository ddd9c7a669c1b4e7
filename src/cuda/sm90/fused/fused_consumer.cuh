// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm90/fused/fused_memory.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"

namespace flashmask::cuda::sm90 {

/// One warpgroup that sums over the tiles of the steps as they are posted, for row tiles and key tiles in turn. Each
/// step computes its probabilities again, so that registers hold the sums of only one side.
template <class Shape>
class FusedConsumer {
  using T = typename Shape::Element;
  using Gradient = float[Shape::kHeadDim / 2];
  using Scores = float[32];
  static constexpr int kPanelBytes = 64 * kPanel * 2;

 public:
  __device__ __forceinline__ FusedConsumer(FusedMemory<Shape>& shared, const FusedArguments& arguments,
                                           const CUtensorMap* grad_q, const CUtensorMap* grad_k,
                                           const CUtensorMap* grad_v)
      : shared_(shared), arguments_(arguments), grad_q_(grad_q), grad_k_(grad_k), grad_v_(grad_v) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      const Sum sum = await_step().sum;
      if (sum == Sum::none) break;
      if (sum == Sum::of_rows)
        sum_rows();
      else
        sum_keys();
    }
    if (lane() == 0) await_stores_read();
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }
  static __device__ __forceinline__ int warp() { return __shfl_sync(~0U, threadIdx.x % 128 / 32, 0); }

  __device__ __forceinline__ const FusedStep& await_step() {
    barrier_wait(&shared_.full[step_.slot], step_.phase);
    return shared_.steps[step_.slot];
  }

  __device__ __forceinline__ void end_step() {
    __syncwarp();
    if (lane() == 0) barrier_arrive(&shared_.done[step_.slot]);
    step_.advance();
    mask_.advance();
  }

  static __device__ __forceinline__ void clear(Gradient& gradient) {
#pragma unroll
    for (int i = 0; i < Shape::kHeadDim / 2; ++i) gradient[i] = 0;
  }

  __device__ __forceinline__ void sum_rows() {
    Gradient grad_q;
    clear(grad_q);
    for (;;) {
      const FusedStep step = await_step();
      if (step.visits) add_rows(grad_q, step);
      end_step();
      if (!step.last) continue;
      store(grad_q, arguments_.score.scale, grad_q_, step);
      return;
    }
  }

  __device__ __forceinline__ void sum_keys() {
    Gradient grad_k, grad_v;
    clear(grad_k);
    clear(grad_v);
    for (;;) {
      const FusedStep step = await_step();
      if (step.visits) add_keys(grad_k, grad_v, step);
      end_step();
      if (!step.last) continue;
      if (arguments_.float32_k.data != nullptr) {
        store_sums(grad_k, arguments_.score.scale, arguments_.float32_k, arguments_.head_dim, step);
        store_sums(grad_v, 1, arguments_.float32_v, arguments_.value_dim, step);
      } else {
        store(grad_k, arguments_.score.scale, grad_k_, step);
        store(grad_v, 1, grad_v_, step);
      }
      return;
    }
  }

  /// grad_q += grad_s k
  __device__ __forceinline__ void add_rows(Gradient& grad_q, const FusedStep& step) {
    Scores s, grad_p;
    std::uint32_t grad_s[4][4];
    const auto &queries = shared_.pairs[step.query_pair], &keys = shared_.pairs[step.key_pair];
    wgmma_fence();
    multiply(s, queries[0], keys[0]);
    multiply(grad_p, queries[1], keys[1]);
    const int row = warp() * 16 + lane() / 4;
    RowNumbers<1> lse_log2, dots;
    lse_log2.load(shared_.statistics[step.query_pair][0] + warp() * 16);
    dots.load(shared_.statistics[step.query_pair][1] + warp() * 16);
    std::uint32_t masked[RowWords::kWords];
    if (step.masked) {
      using Bits = FragmentBits<Shape::kRows>;
      const std::uint32_t* words = shared_.masks[mask_.slot].of_rows.words + lane() % 4 * Bits::kPitch + row;
      masked[0] = words[0];
      masked[1] = words[8];
    }
    wgmma_wait<1>();
    pin(s);
    if (step.masked) hide<RowWords>(as_unit(s), masked);
    exponentiate(as_unit(s), arguments_.score.scale_log2, lse_log2);
    pin(s);
    wgmma_wait<0>();
    pin(grad_p);
    differentiate(as_unit(grad_p), as_unit(s), dots);
    pack<T>(as_unit(grad_s), as_unit(grad_p));
    pin(grad_q);
    wgmma_fence();
    multiply_packed<T, kPanelBytes>(grad_q, grad_s, keys[0]);
    wgmma_wait<0>();
    pin(grad_q);
  }

  /// grad_v += pᵀ grad_o, grad_k += grad_sᵀ q.
  __device__ __forceinline__ void add_keys(Gradient& grad_k, Gradient& grad_v, const FusedStep& step) {
    Scores s, grad_p;
    std::uint32_t p[4][4], grad_s[4][4];
    const auto &queries = shared_.pairs[step.query_pair], &keys = shared_.pairs[step.key_pair];
    wgmma_fence();
    multiply(s, keys[0], queries[0]);
    multiply(grad_p, keys[1], queries[1]);
    std::uint32_t masked[ColumnWords<Shape::kRows>::kWords];
    if (step.masked)
      Shape::Mask::find_words(masked, shared_.masks[mask_.slot].of_keys, warp() * 16, step.row_tile * Shape::kRows);
    TransposedRowNumbers<Shape::kRows / 8> lse_log2, dots;
    lse_log2.load(shared_.statistics[step.query_pair][0]);
    wgmma_wait<1>();
    pin(s);
    if (step.masked) hide<ColumnWords<Shape::kRows>>(as_unit(s), masked);
    exponentiate(as_unit(s), arguments_.score.scale_log2, lse_log2);
    dots.load(shared_.statistics[step.query_pair][1]);
    pin(s);
    wgmma_wait<0>();
    pin(grad_p);
    differentiate(as_unit(grad_p), as_unit(s), dots);
    pack<T>(as_unit(p), as_unit(s));
    pack<T>(as_unit(grad_s), as_unit(grad_p));
    pin(grad_v);
    wgmma_fence();
    multiply_packed<T, kPanelBytes>(grad_v, p, queries[1]);
    pin(grad_k);
    wgmma_fence();
    multiply_packed<T, kPanelBytes>(grad_k, grad_s, queries[0]);
    wgmma_wait<0>();
    pin(grad_k);
    pin(grad_v);
  }

  /// s = rows columnsᵀ
  __device__ __forceinline__ void multiply(Scores& s, const std::uint8_t* rows, const std::uint8_t* columns) {
    multiply_tiles<T, Shape::kHeadDim, kPanelBytes, kPanelBytes>(s, shared_address(rows), columns);
  }

  /// Stores a warp's rows unit by unit through the copy engine, which leaves out rows past the tensor's end.
  __device__ __forceinline__ void store(const Gradient& gradient, float factor, const CUtensorMap* to,
                                        const FusedStep& step) {
    const int row = step.tile * 64 + warp() * 2 * kUnitRows;
#pragma unroll
    for (int unit = 0; unit < Shape::kHeadDim / kPanel * 2; ++unit) {
      const int panel = unit / 2, half = unit % 2;
      std::uint8_t* const place = shared_.results[warp()][unit_];
      if (lane() == 0) await_stores_read<Shape::kUnits - 1>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = panel * 32 + (i * 4 + j) * 4 + half * 2;
          words[j] = pack<T>(gradient[at] * factor, gradient[at + 1] * factor);
        }
        const int chunk = (i * 4 + lane() / 8) ^ lane() % 8;
        store_matrices(shared_address(place) + lane() % 8 * kPanel * 2 + chunk * 16, words);
      }
      fence_stores_for_async();
      __syncwarp();
      if (lane() == 0) {
        store_box(to, place, panel * kPanel, step.head, row + half * kUnitRows, step.batch);
        commit_stores();
      }
      unit_ = unit_ + 1 == Shape::kUnits ? 0 : unit_ + 1;
    }
  }

  /// Stores float32 results straight from registers.
  __device__ __forceinline__ void store_sums(const Gradient& gradient, float factor, const OutputRows& to, int dim,
                                             const FusedStep& step) {
    const int first = step.tile * Shape::kColumns + warp() * 16 + lane() / 4;
    store_rows(gradient, {factor, factor}, to.of<float>(step.batch, step.head), to.row, first, arguments_.key_length,
               dim);
  }

  FusedMemory<Shape>& shared_;
  const FusedArguments& arguments_;
  const CUtensorMap *grad_q_, *grad_k_, *grad_v_;
  RingPosition<Shape::kSteps> step_;
  RingPosition<Shape::kMasks> mask_;
  int unit_ = 0;
};

}  // namespace flashmask::cuda::sm90
