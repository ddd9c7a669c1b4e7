// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/walk/gate_sums.cuh"
#include "cuda/sm90/walk/pair_weights.cuh"
#include "cuda/sm90/walk/reverse_memory.cuh"

namespace flashmask::cuda::sm90 {

/// The group of ∂k, or of ∂v.
template <class Shape, bool kOfKeys>
class ReverseGradient {
  using T = typename Shape::Element;
  static constexpr int kOwnBarrier = kOfKeys ? 1 : 2;
  static constexpr bool kAddsDivisors = Shape::kVector && kOfKeys;  ///< gradients of sums of weights
  static constexpr bool kLeavesRows = Shape::kGates && kOfKeys;     ///< products of rows of k and ∂k

 public:
  __device__ __forceinline__ ReverseGradient(ReverseMemory<Shape>& shared, const ReverseArguments& arguments)
      : shared_(shared), a_(arguments) {}

  __device__ __forceinline__ void run(int steps) {
    int stored = -1;  // the stage from which the step before is being stored
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      step(stored);
      stored = stage_.slot();
      stage_.advance();
      copy_.advance();
      slot_.advance();
    }
    await_stores();
  }

 private:
  __device__ __forceinline__ void step(int stored) {
    const int stage = stage_.slot(), lane = lane_index();
    std::uint8_t* const own = kOfKeys ? shared_.v[stage] : shared_.k[stage];
    float s[32], out[64];
    barrier_wait(&shared_.qg_full[stage], stage_.phase());
    barrier_wait(&shared_.kv_full[stage], stage_.phase());
    wgmma_fence();
    multiply_tiles<T, Shape::kDim, Shape::kTilePanel, Shape::kTilePanel>(s, shared_address(own),
                                                                         kOfKeys ? shared_.g[stage] : shared_.q[stage]);
    read_state(out, own);
    release(stored);
    barrier_wait(&shared_.factors_full[slot_.slot()], slot_.phase());
    const WalkFactors& factors = shared_.factors[slot_.slot()];
    const WalkVisit& visit = shared_.visits[stage];
    const int row = 16 * warp_of_group() + lane / 4;
    std::uint32_t p[4][4];
    wgmma_wait<1>();
    pin(s);
    // Beside the products of rows, packed weights would not fit into the registers.
    if constexpr (!kLeavesRows) weigh(p, s, factors, row, visit.tokens);
    finish_state(out, factors, row);
    const bool of_inputs = a_.parts.of_inputs != nullptr;
    if constexpr (kLeavesRows) {
      float products[2];
      find_row_products<T>(products, out, shared_address(shared_.k[stage]));
      leave_rows(a_.parts.of_keys + a_.parts.at(visit) * kWalkTokens, products);
      __syncwarp();
      if (!of_inputs && lane == 0) barrier_arrive(&shared_.keys_read[stage]);
      weigh(p, s, factors, row, visit.tokens);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared_.factors_empty[slot_.slot()]);
    if (visit.tokens < kWalkTokens) barrier_wait(&shared_.cleared[stage], stage_.phase());
    wgmma_fence();
    multiply_packed<T, Shape::kTilePanel>(out, p, kOfKeys ? shared_.q[stage] : shared_.g[stage]);
    wgmma_wait<0>();
    pin(out);
    if (lane == 0) barrier_arrive(&shared_.qg_empty[stage]);
    if constexpr (kLeavesRows)
      if (of_inputs) {
        // The gradient of an input gate is k · ∂k, since k has no other weight.
        float products[2];
        find_row_products<T>(products, out, shared_address(shared_.k[stage]));
        leave_rows(a_.parts.of_inputs + a_.parts.at(visit) * kWalkTokens, products);
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared_.keys_read[stage]);
      }
    named_barrier(kOwnBarrier, 128);  // all have read their tile
    if constexpr (Shape::kGates && !kOfKeys) barrier_wait(&shared_.keys_read[stage], stage_.phase());
    const float ones[2] = {1, 1};
    const int key = visit.column_slice, value = visit.inner_slice;
    store_rows_staged<T>(out, ones, own, Shape::kTilePanel,
                         kOfKeys ? StoreMaps{&a_.dk_rows, &a_.dk_row} : StoreMaps{&a_.dv_rows, &a_.dv_row}, visit.row,
                         visit.row + visit.tokens,
                         kOfKeys ? visit.head * a_.value_slices + value : visit.head * a_.key_slices + key, visit.batch,
                         Shape::kDim * (kOfKeys ? key : value));
  }

  /// Starts out = v Yᵀ, or k Y.
  __device__ __forceinline__ void read_state(float (&out)[64], const std::uint8_t* own) const {
    barrier_wait(&shared_.state_full[copy_.slot()], copy_.phase());
    const std::uint8_t* const state = shared_.state[copy_.slot()];
    if constexpr (kOfKeys)
      multiply_tiles<T, Shape::kDim, Shape::kTilePanel, Shape::kStatePanel>(out, shared_address(own), state);
    else
      multiply_rows<T, Shape::kDim, Shape::kTilePanel, Shape::kStatePanel>(out, shared_address(own), state);
  }

  /// Ends out = into (v Yᵀ), or into (k Y).
  __device__ __forceinline__ void finish_state(float (&out)[64], const WalkFactors& factors, int row) const {
    wgmma_wait<0>();
    pin(out);
    if constexpr (kAddsDivisors) add_vector(out);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.state_empty[copy_.slot()]);
    const float into[2] = {factors.into[row], factors.into[row + 8]};
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] *= into[i / 2 % 2];
  }

  /// Adds the vector's part to v Yᵀ.
  __device__ __forceinline__ void add_vector(float (&out)[64]) const {
    const float* const vector = shared_.vector[copy_.slot()] + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] += vector[8 * (i / 4) + i % 2];
  }

  /// Frees the tile from which the step before is being stored.
  __device__ __forceinline__ void release(int stored) const {
    if (stored < 0) return;
    await_stores_read();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.kv_empty[stored]);
  }

  /// Weighs products of keys with the rows that see them.
  __device__ __forceinline__ void weigh(std::uint32_t (&p)[4][4], const float (&s)[32], const WalkFactors& factors,
                                        int key, int tokens) const {
    for_each_two_pairs<OwnTokens::columns>(factors, key, [&](int at, int token, int row, float2 weights) {
      const float2 added = *reinterpret_cast<const float2*>(shared_.added[slot_.slot()] + row);
      const float left = kAddsDivisors ? s[at] + added.x : s[at],
                  right = kAddsDivisors ? s[at + 1] + added.y : s[at + 1];
      p[at / 8][at / 2 % 4] = pack<T>(row >= token && row < tokens ? weights.x * (a_.scale * left) : 0,
                                      row + 1 >= token && row + 1 < tokens ? weights.y * (a_.scale * right) : 0);
    });
  }

  ReverseMemory<Shape>& shared_;
  const ReverseArguments& a_;
  RingCounter<Shape::kStages> stage_;
  RingCounter<Shape::kCopies> copy_;
  RingCounter<Shape::kSlots> slot_;
};

}  // namespace flashmask::cuda::sm90
