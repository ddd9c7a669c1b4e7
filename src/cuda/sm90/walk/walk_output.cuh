// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/walk/gate_sums.cuh"
#include "cuda/sm90/walk/pair_weights.cuh"
#include "cuda/sm90/walk/walk_memory.cuh"

namespace flashmask::cuda::sm90 {

/// The output group of a walk.
template <class Shape>
class WalkOutput {
  using T = typename Shape::Element;
  static constexpr int kColumns = Shape::kColumns;
  static constexpr bool kDividesAgain = Shape::kGates && Shape::kVector;

 public:
  __device__ __forceinline__ WalkOutput(WalkMemory<Shape>& shared, const WalkArguments& arguments)
      : shared_(shared), a_(arguments) {}

  __device__ __forceinline__ void run(int steps) {
    int stored = -1;  // the stage from which the step before is being stored
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      if constexpr (Shape::kFindsRows)
        find_divisors(stored);
      else
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
    const std::uint32_t x = shared_address(shared_.x[stage]);
    float s[32], out[kColumns / 2], pairs[Shape::kGates ? 32 : 1];
    barrier_wait(&shared_.x_full[stage], stage_.phase());
    barrier_wait(&shared_.yz_full[stage], stage_.phase());
    wgmma_fence();
    multiply_tiles<T, Shape::kInner, Shape::kTilePanel, Shape::kTilePanel>(s, x, shared_.y[stage]);
    if constexpr (Shape::kGates)
      multiply_tiles<T, kColumns, Shape::kTilePanel, Shape::kTilePanel>(
          pairs, shared_address(shared_.counterpart[stage]), shared_.z[stage]);
    if (Shape::kOverlaps) read_state(out, x);
    release(stored);
    barrier_wait(&shared_.factors_full[slot_.slot()], slot_.phase());
    const WalkFactors& factors = shared_.factors[slot_.slot()];
    const int row = 16 * warp_of_group() + lane / 4;
    const float from[2] = {factors.from[row], factors.from[row + 8]};
    float results[2] = {factors.own[row], factors.own[row + 8]}, sums[2] = {}, added[2] = {};
    std::uint32_t p[4][4];
    float of_vector[2] = {};
    if (!Shape::kOverlaps) add_dots(of_vector, x);
    wgmma_wait<Shape::kOverlaps ? 1 : 0>();
    pin(s);
    if constexpr (Shape::kGates) pin(pairs);
    const WalkVisit& visit = shared_.visits[stage];
    if constexpr (kDividesAgain)
      differentiate_divisors(results, added, out, pairs, s, factors, from, row);
    else if constexpr (Shape::kGates)
      find_results(results, added, sums, from, of_vector);
    weigh(p, sums, s, pairs, added, results, factors, row, visit.tokens);
    if (!Shape::kOverlaps) {
      wgmma_fence();
      read_state(out, x);
    }
    if constexpr (!Shape::kGates) {
      if (Shape::kOverlaps) add_dots(of_vector, x);
      find_results(results, added, sums, from, of_vector);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared_.factors_empty[slot_.slot()]);
    if constexpr (Shape::kGates) leave_crossing(shared_.crossing, pairs, row);
    if constexpr (!kDividesAgain) {
      finish_state(out, from);
      if (lane == 0) barrier_arrive(&shared_.state_empty[copy_.slot()]);
      if constexpr (Shape::kGates) {
        float products[2];
        find_row_products<T>(products, out, shared_address(shared_.counterpart[stage]));
        products[0] *= results[0], products[1] *= results[1];
        leave_rows(a_.parts.of_queries + a_.parts.at(visit) * kWalkTokens, products);
      }
    }
    if (visit.tokens < kWalkTokens) barrier_wait(&shared_.cleared[stage], stage_.phase());
    wgmma_fence();
    multiply_packed<T, Shape::kTilePanel>(out, p, shared_.z[stage]);
    wgmma_wait<0>();
    pin(out);
    if (lane == 0) barrier_arrive(&shared_.yz_empty[stage]);
    named_barrier(1, 128);  // all have read x, and left their sums
    if constexpr (Shape::kGates) write_sums(a_.parts.crossing + a_.parts.at(visit) * kWalkTokens, shared_.crossing);
    store_rows_staged<T>(out, results, shared_.x[stage], Shape::kTilePanel, {&a_.maps.out_rows, &a_.maps.out_row},
                         visit.row, visit.row + visit.tokens, visit.head * a_.inner_slices + visit.inner_slice,
                         visit.batch, kColumns * visit.column_slice);
    if constexpr (Shape::kGates) named_barrier(1, 128);  // the sums may be overwritten
  }

  /// A step of the walk that only finds what rows are divided by.
  __device__ __forceinline__ void find_divisors(int before) {
    const int stage = stage_.slot(), row = 16 * warp_of_group() + lane_index() / 4;
    const std::uint32_t x = shared_address(shared_.x[stage]);
    float s[32], none[1], of_vector[2] = {}, sums[2] = {}, added[2] = {};
    barrier_wait(&shared_.x_full[stage], stage_.phase());
    barrier_wait(&shared_.yz_full[stage], stage_.phase());
    wgmma_fence();
    multiply_tiles<T, Shape::kInner, Shape::kTilePanel, Shape::kTilePanel>(s, x, shared_.y[stage]);
    release(before);
    add_dots(of_vector, x);
    barrier_wait(&shared_.factors_full[slot_.slot()], slot_.phase());
    const WalkFactors& factors = shared_.factors[slot_.slot()];
    const float from[2] = {factors.from[row], factors.from[row + 8]};
    float results[2] = {factors.own[row], factors.own[row + 8]};
    wgmma_wait<0>();
    pin(s);
    std::uint32_t p[4][4];
    weigh(p, sums, s, none, added, results, factors, row, kWalkTokens);
    find_results(results, added, sums, from, of_vector);
    leave_divisors(shared_.visits[stage], results, added);
    __syncwarp();
    if (lane_index() != 0) return;
    barrier_arrive(&shared_.factors_empty[slot_.slot()]);
    barrier_arrive(&shared_.state_empty[copy_.slot()]);
    barrier_arrive(&shared_.yz_empty[stage]);
  }

  /// Frees the tile from which the step before is being stored.
  __device__ __forceinline__ void release(int stored) const {
    if (stored < 0) return;
    await_stores_read();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.x_empty[stored]);
  }

  /// Starts out = x state.
  __device__ __forceinline__ void read_state(float (&out)[kColumns / 2], std::uint32_t x) const {
    barrier_wait(&shared_.state_full[copy_.slot()], copy_.phase());
    multiply_tiles<T, Shape::kInner, Shape::kTilePanel, Shape::kStatePanel>(out, x, shared_.state[copy_.slot()]);
  }

  /// Ends out = from (x state).
  __device__ __forceinline__ void finish_state(float (&out)[kColumns / 2], const float (&from)[2]) const {
    wgmma_wait<0>();
    pin(out);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) out[i] *= from[i / 2 % 2];
  }

  /// Where o was divided, by N(i), ends out = from (x state) in the walk for ∂q, with the vector's part in it. Finds
  /// the results 1 / N, and `added`, what the sums of weights add to each product of a row: with o the quotient,
  /// −(∂o · o) times the sign of the sum, or 0 where N is its bound; unless both are given. `pairs`: the products of q
  /// and k.
  __device__ __forceinline__ void differentiate_divisors(float (&results)[2], float (&added)[2],
                                                         float (&out)[kColumns / 2], const float (&pairs)[32],
                                                         const float (&s)[32], const WalkFactors& factors,
                                                         const float (&from)[2], int row) const {
    const std::uint32_t q = shared_address(shared_.counterpart[stage_.slot()]);
    float weights[2] = {}, numerators[2] = {}, of_vector[2] = {}, of_queries[2];
    if (!a_.rows.given) {
      for_each_two_pairs<OwnTokens::rows>(factors, row, [&](int at, int token, int column, float2 two) {
        const auto weigh_one = [&](int i, int seen, float weight) {
          const float weighted = seen <= token ? weight * (a_.scale * pairs[i]) : 0;
          weights[i / 2 % 2] += weighted;
          // Products with rows behind a node's end may be NaN.
          if (seen <= token) numerators[i / 2 % 2] += weighted * s[i];
        };
        weigh_one(at, column, two.x), weigh_one(at + 1, column + 1, two.y);
      });
      add_dots(of_vector, q);
    }
    finish_state(out, from);
    if (a_.rows.given) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        results[half] = exp2_approximate(-results[half]), added[half] = shared_.added[slot_.slot()][row + 8 * half];
      add_vector(out, added, from);
      find_row_products<T>(of_queries, out, q);
      of_queries[0] *= results[0], of_queries[1] *= results[1];
    } else {
      find_row_products<T>(of_queries, out, q);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_state = from[half] * sum_of_row(of_vector[half]), sum = sum_of_row(weights[half]) + of_state,
                    bound = exp2_approximate(-results[half]), size = fabsf(sum);
        const bool bounded = size < bound;
        const float product = sum_of_row(numerators[half]) + of_queries[half];
        results[half] = 1 / (bounded ? bound : size);
        added[half] = bounded ? 0 : -copysignf(results[half], sum) * product;
        of_queries[half] = results[half] * (of_queries[half] + added[half] * of_state);
      }
      add_vector(out, added, from);
      leave_divisors(shared_.visits[stage_.slot()], results, added);
    }
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared_.state_empty[copy_.slot()]);
    leave_rows(a_.parts.of_queries + a_.parts.at(shared_.visits[stage_.slot()]) * kWalkTokens, of_queries);
  }

  /// Adds the vector's part to from (x state).
  __device__ __forceinline__ void add_vector(float (&out)[kColumns / 2], const float (&added)[2],
                                             const float (&from)[2]) const {
    const float* const vector = shared_.vector[copy_.slot()] + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) out[i] += from[i / 2 % 2] * added[i / 2 % 2] * vector[8 * (i / 4) + i % 2];
  }

  __device__ __forceinline__ void leave_divisors(const WalkVisit& visit, const float (&results)[2],
                                                 const float (&added)[2]) const {
    leave_rows(a_.rows.result + a_.parts.first_row(visit), results);
    leave_rows(a_.rows.divisor + a_.parts.first_row(visit), added);
  }

  /// Turns products of rows, and what is added to each, into weighted ones, rounded, and adds them up; with gates,
  /// turns `pairs` into what each pair of tokens adds to the gates between them, 0 where there is no pair.
  template <int kPairs>
  __device__ __forceinline__ void weigh(std::uint32_t (&p)[4][4], float (&sums)[2], const float (&s)[32],
                                        float (&pairs)[kPairs], const float (&added)[2], const float (&results)[2],
                                        const WalkFactors& factors, int row, int tokens) const {
    for_each_two_pairs<OwnTokens::rows>(factors, row, [&](int at, int token, int column, float2 weights) {
      const int half = at / 2 % 2;
      const bool exists = !Shape::kGates || token < tokens;
      const auto weigh_one = [&](int i, int seen, float weight) {
        const float product = kDividesAgain ? s[i] + added[half] : s[i];
        const float weighted = seen <= token && exists ? weight * (a_.scale * product) : 0;
        if constexpr (Shape::kGates) pairs[i] = seen <= token && exists ? weighted * results[half] * pairs[i] : 0;
        return weighted;
      };
      const float left = weigh_one(at, column, weights.x), right = weigh_one(at + 1, column + 1, weights.y);
      if (Shape::kVector) sums[half] += left + right;
      p[at / 8][at / 2 % 4] = pack<T>(left, right);
    });
  }

  /// Turns the scales m of rows into what they are multiplied by; `added` gets minus the sign of what they are divided
  /// by.
  __device__ __forceinline__ void find_results(float (&results)[2], float (&added)[2], const float (&sums)[2],
                                               const float (&from)[2], const float (&of_vector)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Shape::kVector) {
        const float sum = sum_of_row(sums[half] + from[half] * of_vector[half]);
        const float bound = exp2_approximate(-results[half]), size = fabsf(sum);
        results[half] = 1 / (size < bound ? bound : size);
        added[half] = size < bound ? 0 : -copysignf(1, sum);
      } else {
        results[half] = exp2_approximate(results[half]);
      }
    }
  }

  /// Adds the thread's part of the products of its rows of a tile with the vector.
  __device__ __forceinline__ void add_dots(float (&sums)[2], std::uint32_t tile) const {
    if (!Shape::kVector) return;
    barrier_wait(&shared_.state_full[copy_.slot()], copy_.phase());
    const int lane = lane_index(), quad = lane % 4;
    const float* const vector = shared_.vector[copy_.slot()];
    const std::uint32_t at = tile + (16 * warp_of_group() + lane / 4) * kPanel * 2 + quad * 4;
#pragma unroll 8
    for (int unit = 0; unit < Shape::kVectorDims / 8; ++unit) {  // 8 numbers, two of which are the thread's
      const float2 two = *reinterpret_cast<const float2*>(vector + 8 * unit + 2 * quad);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 numbers = unpack<T>(
            load_word(at + unit / 8 * Shape::kTilePanel + half * 8 * kPanel * 2 + (unit % 8 ^ lane / 4) * 16));
        sums[half] += numbers.x * two.x + numbers.y * two.y;
      }
    }
  }

  WalkMemory<Shape>& shared_;
  const WalkArguments& a_;
  RingCounter<Shape::kStages> stage_;
  RingCounter<Shape::kCopies> copy_;
  RingCounter<Shape::kSlots> slot_;
};

}  // namespace flashmask::cuda::sm90
