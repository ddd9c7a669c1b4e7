// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/walk/state_tiles.cuh"

namespace flashmask::cuda::sm90 {

/// A state group of a walk: 64 columns of the state, transposed. Warp w, lane l holds columns 16 w + l / 4 and + 8 of
/// the group's; number i of a part is of column i / 2 % 2 and of inner dim 8 (i / 4) + 2 (l % 4) + i % 2.
template <class Shape>
class WalkState {
  using T = typename Shape::Element;
  static constexpr int kParts = Shape::kParts, kThreads = 128 * Shape::kStateGroups;

 public:
  __device__ __forceinline__ WalkState(WalkMemory<Shape>& shared, const WalkArguments& arguments, int group)
      : shared_(shared), a_(arguments), group_(group) {}

  __device__ __forceinline__ void run(int steps) {
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      step();
      stage_.advance();
      copy_.advance();
      slot_.advance();
    }
  }

 private:
  /// The thread's number among those of all state groups, and the dim of the vector that it holds.
  __device__ __forceinline__ int thread() const { return static_cast<int>(thread_index()) - 256; }
  __device__ __forceinline__ bool holds_vector() const { return Shape::kVector && thread() < Shape::kVectorDims; }
  /// How many dims of the vector there are.
  __device__ __forceinline__ int vector_dims() const { return Shape::kGates ? a_.column_dim : a_.inner_dim; }

  __device__ __forceinline__ void step() {
    const int lane = lane_index();
    barrier_wait(&shared_.factors_full[slot_.slot()], slot_.phase());
    const WalkFactors& factors = shared_.factors[slot_.slot()];
    const WalkVisit& visit = factors.visit;
    if (visit.from != kGoesOn) begin(visit);
    barrier_wait(&shared_.state_empty[copy_.slot()], copy_.phase() ^ 1);
    publish();
    if constexpr (Shape::kGates) dump(visit);
    const float gain = factors.gain;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (float& number : state_[part]) number *= gain;
    barrier_wait(&shared_.yz_full[stage_.slot()], stage_.phase());
    if (visit.tokens < kWalkTokens) barrier_wait(&shared_.cleared[stage_.slot()], stage_.phase());
    if constexpr (Shape::kFindsRows)
      add_vector(factors);
    else
      add_step(factors);
    if (visit.keep >= 0) keep(visit.keep);
    if (visit.node >= 0 && a_.final.state != nullptr) give(visit);
    __syncwarp();  // all have read the factors
    if (lane == 0) {
      barrier_arrive(&shared_.yz_empty[stage_.slot()]);
      barrier_arrive(&shared_.factors_empty[slot_.slot()]);
    }
  }

  /// Adds (z into)ᵀ y to the state, whose gain is in it.
  __device__ __forceinline__ void add_step(const WalkFactors& factors) {
    std::uint32_t columns[4][4];  // zᵀ
    load_weighted_columns<T>(columns, shared_address(shared_.z[stage_.slot()]) + group_ * Shape::kTilePanel,
                             factors.into);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      multiply_packed<T, Shape::kTilePanel>(state_[part], columns,
                                            shared_.y[stage_.slot()] + 2 * part * Shape::kTilePanel);
    if (Shape::kOverlaps) add_vector(factors);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(state_[part]);
    if (!Shape::kOverlaps) add_vector(factors);
  }

  /// Rounds the state into shared memory, for the output group.
  __device__ __forceinline__ void publish() {
    if constexpr (!Shape::kFindsRows) {
      const std::uint32_t tile = shared_address(shared_.state[copy_.slot()]) + 64 * group_ * kPanel * 2;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        store_state<T>(state_[part], tile + 2 * part * Shape::kStatePanel, Shape::kStatePanel);
      fence_stores_for_async();
    }
    if (holds_vector()) shared_.vector[copy_.slot()][thread()] = vector_;
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.state_full[copy_.slot()]);
  }

  /// Writes the state in bfloat16, for the walk from last to first.
  __device__ __forceinline__ void dump(const WalkVisit& visit) const {
    uint4* const to =
        a_.parts.states + a_.parts.at(visit) * (16 * 128) + group_ * (8 * 128) + static_cast<int>(thread_index()) % 128;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      __stcs(to + i * 128, make_uint4(pack<__nv_bfloat16>(state_[0][8 * i], state_[0][8 * i + 1]),
                                      pack<__nv_bfloat16>(state_[0][8 * i + 2], state_[0][8 * i + 3]),
                                      pack<__nv_bfloat16>(state_[0][8 * i + 4], state_[0][8 * i + 5]),
                                      pack<__nv_bfloat16>(state_[0][8 * i + 6], state_[0][8 * i + 7])));
    if (holds_vector()) a_.parts.vectors[a_.parts.at(visit) * Shape::kVectorDims + thread()] = vector_;
  }

  __device__ __forceinline__ void add_vector(const WalkFactors& factors) {
    if (!holds_vector()) return;
    vector_ *= factors.gain;
    add_weighted_rows<T>(vector_, Shape::kGates ? shared_.z[stage_.slot()] : shared_.y[stage_.slot()],
                         thread() - lane_index(),
                         [&](int token) { return *reinterpret_cast<const float4*>(factors.into + token); });
  }

  /// Calls body(number, where it is among the caller's states) for the thread's numbers that exist.
  template <class Body>
  __device__ __forceinline__ void for_each(const WalkStates& states, std::int64_t item, const WalkVisit& visit,
                                           const Body& body) {
    const int column = Shape::kColumns * visit.column_slice + 64 * group_;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int inner = Shape::kInner * visit.inner_slice + 128 * part;
      for_each_number(
          state_[part],
          {states.state + item * states.item + visit.head * states.head + inner * states.key + column * states.value,
           states.value, states.key, a_.column_dim - column, a_.inner_dim - inner},
          body);
    }
  }

  /// Takes up the state before a step that does not go on from the one before.
  __device__ __forceinline__ void begin(const WalkVisit& visit) {
    if (visit.from >= 0) return take_up(visit.from);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (float& number : state_[part]) number = 0;
    vector_ = 0;
    const WalkStates& given = a_.initial;
    if (given.state == nullptr) return;
    const std::int64_t root = kFirstRoot - visit.from;
    for_each(given, root, visit, [](float& number, const float* from) { number = *from; });
    const int dim = thread() + (Shape::kGates ? Shape::kColumns * visit.column_slice : 0);
    if (holds_vector() && given.vector != nullptr && dim < vector_dims())
      vector_ = given.vector[root * given.vector_item + visit.head * given.vector_head + dim];
  }

  __device__ __forceinline__ float4* slot(int number) const {
    return a_.slots + (static_cast<std::int64_t>(blockIdx.x) * a_.slots_per_block + number) * (16 * kParts * kThreads) +
           thread();
  }
  __device__ __forceinline__ float* slot_vector(int number) const {
    return a_.slot_vectors +
           (static_cast<std::int64_t>(blockIdx.x) * a_.slots_per_block + number) * Shape::kVectorDims + thread();
  }

  /// Keeps the state in a slot, from which the same threads take it up.
  __device__ __forceinline__ void keep(int number) const {
    float4* const to = slot(number);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 16; ++i)
        to[(16 * part + i) * kThreads] = {state_[part][4 * i], state_[part][4 * i + 1], state_[part][4 * i + 2],
                                          state_[part][4 * i + 3]};
    if (holds_vector()) *slot_vector(number) = vector_;
  }
  __device__ __forceinline__ void take_up(int number) {
    const float4* const from = slot(number);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 four = from[(16 * part + i) * kThreads];
        state_[part][4 * i] = four.x, state_[part][4 * i + 1] = four.y;
        state_[part][4 * i + 2] = four.z, state_[part][4 * i + 3] = four.w;
      }
    if (holds_vector()) vector_ = *slot_vector(number);
  }

  /// Gives the state behind a node to the caller.
  __device__ __forceinline__ void give(const WalkVisit& visit) {
    const WalkStates& wanted = a_.final;
    for_each(wanted, visit.node, visit, [](float number, float* to) { *to = number; });
    if (holds_vector() && wanted.vector != nullptr && visit.slice == 0 && thread() < vector_dims())
      wanted.vector[visit.node * wanted.vector_item + visit.head * wanted.vector_head + thread()] = vector_;
  }

  WalkMemory<Shape>& shared_;
  const WalkArguments& a_;
  const int group_;
  RingCounter<Shape::kStages> stage_;
  RingCounter<Shape::kCopies> copy_;
  RingCounter<Shape::kSlots> slot_;
  float state_[kParts][64] = {}, vector_ = 0;
};

}  // namespace flashmask::cuda::sm90
