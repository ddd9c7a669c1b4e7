// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/walk/reverse_memory.cuh"
#include "cuda/sm90/walk/state_tiles.cuh"

namespace flashmask::cuda::sm90 {

/// The state group of the walk from last to first: keys 64 half + 16 w + l / 4 and + 8 of warp w, lane l, all values.
template <class Shape>
class ReverseState {
  using T = typename Shape::Element;

 public:
  __device__ __forceinline__ ReverseState(ReverseMemory<Shape>& shared, const ReverseArguments& arguments)
      : shared_(shared), a_(arguments) {}

  /// Walks at least one step; a count of steps would not fit into the registers.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (bool last = false; !last;) {
      last = step();
      stage_.advance();
      copy_.advance();
      slot_.advance();
    }
  }

 private:
  static __device__ __forceinline__ int thread() { return static_cast<int>(thread_index()) % 128; }

  /// Returns whether it was the last one.
  __device__ __forceinline__ bool step() {
    const int lane = lane_index();
    barrier_wait(&shared_.factors_full[slot_.slot()], slot_.phase());
    const WalkFactors& factors = shared_.factors[slot_.slot()];
    const WalkVisit& visit = factors.visit;
    if (visit.from != kGoesOn) begin(visit.from);
    if (visit.node >= 0 && a_.grad_final.state != nullptr) add_given(visit);
    barrier_wait(&shared_.state_empty[copy_.slot()], copy_.phase() ^ 1);
    publish();
    const float gain = factors.gain;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (float& number : state_[half]) number *= gain;
    vector_ *= gain;
    if constexpr (Shape::kGates) add_across(a_.parts.at(visit));
    barrier_wait(&shared_.qg_full[stage_.slot()], stage_.phase());
    if (visit.tokens < kWalkTokens) barrier_wait(&shared_.cleared[stage_.slot()], stage_.phase());
    std::uint32_t columns[2][4][4];  // qᵀ
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_weighted_columns<T>(columns[half], shared_address(shared_.q[stage_.slot()]) + half * Shape::kTilePanel,
                               factors.from);
      wgmma_fence();
      multiply_packed<T, Shape::kTilePanel>(state_[half], columns[half], shared_.g[stage_.slot()]);
    }
    if constexpr (Shape::kVector)
      add_weighted_rows<T>(vector_, shared_.q[stage_.slot()], thread() - lane_index(), [&](int token) {
        const float4 from = *reinterpret_cast<const float4*>(factors.from + token),
                     added = *reinterpret_cast<const float4*>(shared_.added[slot_.slot()] + token);
        return float4{from.x * added.x, from.y * added.y, from.z * added.z, from.w * added.w};
      });
    wgmma_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; ++half) pin(state_[half]);
    if (visit.keep >= 0) keep(visit.keep);
    if (visit.keep <= kFirstRoot && a_.grad_initial.state != nullptr) give(visit);
    const bool last = factors.last;
    __syncwarp();  // all have read the factors
    if (lane == 0) {
      barrier_arrive(&shared_.qg_empty[stage_.slot()]);
      barrier_arrive(&shared_.factors_empty[slot_.slot()]);
    }
    return last;
  }

  /// Rounds the state into shared memory.
  __device__ __forceinline__ void publish() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_state<T>(state_[half], shared_address(shared_.state[copy_.slot()]) + 64 * half * kPanel * 2,
                     Shape::kStatePanel);
    fence_stores_for_async();
    if (Shape::kVector) shared_.vector[copy_.slot()][thread()] = vector_;
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.state_full[copy_.slot()]);
  }

  /// Leaves the product of the state before the step and its gradient.
  __device__ __forceinline__ void add_across(std::int64_t step) {
    const uint4* const from = a_.parts.states + step * (16 * 128) + thread();
    float sum = Shape::kVector ? vector_ * a_.parts.vectors[step * Shape::kDim + thread()] : 0;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      uint4 fours[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) fours[i] = __ldcs(from + (4 * chunk + i) * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t words[4] = {fours[i].x, fours[i].y, fours[i].z, fours[i].w};
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const int at = (4 * chunk + i) % 8 * 8 + 2 * word;
          const float2 other = unpack<__nv_bfloat16>(words[word]);
          sum += state_[chunk / 2][at] * other.x + state_[chunk / 2][at + 1] * other.y;
        }
      }
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane_index() == 0) shared_.across[warp_of_group()] = sum;
    named_barrier(4, 128);
    if (thread() == 0)
      a_.parts.across[step] = shared_.across[0] + shared_.across[1] + shared_.across[2] + shared_.across[3];
    named_barrier(4, 128);
  }

  __device__ __forceinline__ float4* slot(int number) const {
    return a_.slots + (static_cast<std::int64_t>(blockIdx.x) * a_.slots_per_block + (number & ~kAdds)) * (32 * 128) +
           thread();
  }

  __device__ __forceinline__ float* slot_vector(int number) const {
    return a_.slot_vectors +
           (static_cast<std::int64_t>(blockIdx.x) * a_.slots_per_block + (number & ~kAdds)) * Shape::kDim + thread();
  }

  /// Takes up the gradient of the state behind a step that does not go on from the one visited before.
  __device__ __forceinline__ void begin(int from) {
    const bool zero = from < 0, adds = !zero && (from & kAdds) != 0;
    if (!adds) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (float& number : state_[half]) number = 0;
      vector_ = 0;
    }
    if (zero) return;
    if (Shape::kVector) vector_ += *slot_vector(from);
    const float4* const kept = slot(from);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 four = kept[(16 * half + i) * 128];
        state_[half][4 * i] += four.x, state_[half][4 * i + 1] += four.y;
        state_[half][4 * i + 2] += four.z, state_[half][4 * i + 3] += four.w;
      }
  }

  /// Leaves the gradient of the state before a node for its parent, whose children come from last to first.
  __device__ __forceinline__ void keep(int to) const {
    float4* const kept = slot(to);
    const bool adds = (to & kAdds) != 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float4 four = adds ? kept[(16 * half + i) * 128] : float4{0, 0, 0, 0};
        four.x += state_[half][4 * i], four.y += state_[half][4 * i + 1];
        four.z += state_[half][4 * i + 2], four.w += state_[half][4 * i + 3];
        kept[(16 * half + i) * 128] = four;
      }
    if (Shape::kVector) *slot_vector(to) = vector_ + (adds ? *slot_vector(to) : 0);
  }

  /// Calls body(number, where it is among the caller's states) for the thread's numbers that exist.
  template <class Body>
  __device__ __forceinline__ void for_each(const WalkStates& states, std::int64_t item, const WalkVisit& visit,
                                           const Body& body) {
    const int value = Shape::kDim * visit.inner_slice;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = Shape::kDim * visit.column_slice + 64 * half;
      for_each_number(
          state_[half],
          {states.state + item * states.item + visit.head * states.head + key * states.key + value * states.value,
           states.key, states.value, a_.key_dim - key, a_.value_dim - value},
          body);
    }
  }

  /// The key of the thread's number of the vector; slices of values beyond the first have none.
  __device__ __forceinline__ int vector_key(const WalkVisit& visit) const {
    return visit.inner_slice == 0 ? Shape::kDim * visit.column_slice + thread() : a_.key_dim;
  }

  /// Adds the gradient of the state behind a node that the caller gives.
  __device__ __forceinline__ void add_given(const WalkVisit& visit) {
    const WalkStates& given = a_.grad_final;
    for_each(given, visit.node, visit, [](float& number, const float* from) { number += *from; });
    const int key = vector_key(visit);
    if (Shape::kVector && given.vector != nullptr && key < a_.key_dim)
      vector_ += given.vector[visit.node * given.vector_item + visit.head * given.vector_head + key];
  }

  /// Gives the gradient of the state before a root to the caller.
  __device__ __forceinline__ void give(const WalkVisit& visit) {
    const WalkStates& wanted = a_.grad_initial;
    const std::int64_t root = kFirstRoot - visit.keep;
    for_each(wanted, root, visit, [](float number, float* to) { *to = number; });
    const int key = vector_key(visit);
    if (Shape::kVector && wanted.vector != nullptr && key < a_.key_dim)
      wanted.vector[root * wanted.vector_item + visit.head * wanted.vector_head + key] = vector_;
  }

  ReverseMemory<Shape>& shared_;
  const ReverseArguments& a_;
  RingCounter<Shape::kStages> stage_;
  RingCounter<Shape::kCopies> copy_;
  RingCounter<Shape::kSlots> slot_;
  float state_[2][64] = {}, vector_ = 0;  ///< the thread's number is the key of the vector's
};

}  // namespace flashmask::cuda::sm90
