#pragma once

#include "cuda/sm90/forward_shared.cuh"
#include "cuda/sm90/wgmma.h"

namespace flashmask::cuda::sm90 {

/// A warpgroup: 64 rows of every row tile. A thread holds parts of two rows, quads of threads hold whole ones.
template <class Shape>
class Consumer {
  using T = typename Shape::Element;
  static constexpr int kScores = Shape::kColumns / 2;
  static constexpr int kOutputs = Shape::kValueDim / 2;
  static constexpr int kSteps = Shape::kColumns / 16;

 public:
  __device__ __forceinline__ Consumer(SharedMemory<Shape>& shared, const ForwardArguments& arguments)
      : shared_(shared),
        arguments_(arguments),
        group_(threadIdx.x / 128 - 1),
        row_(group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) {}

  __device__ __forceinline__ void run() {
    float o[kOutputs];
    if (group_ + 1 == Shape::kGroups) pass_turn();
    for (Work work = take_work(shared_, work_); work.item >= 0; work = take_work(shared_, work_)) {
      begin_rows(o);
      if (work.masked_tiles + work.full_tiles > 0) attend(o, work);
      finish_rows(o, RowTile(work.item, arguments_));
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }

  __device__ __forceinline__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

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
      take_bits(bits);
      hide(s, bits);
    }
    float factor[2];
    raise_maximum(s, factor);
    exponentiate(s);
    round(p, s);
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
    if constexpr (kMasked) take_bits(bits);
    wgmma_wait<1>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    if constexpr (kMasked) hide(s, bits);
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
    round(p, s);
    if (raised) rescale(o, factor);
  }

  /// s = q kᵀ
  __device__ __forceinline__ void multiply_keys(float (&s)[kScores]) {
    std::uint32_t q = shared_address(shared_.q[queries_.slot]) + group_ * 64 * kPanel * 2;
    const std::uint32_t k = shared_address(shared_.k[keys_.slot]);
    // With one buffer the compiler would keep a descriptor a step over the whole loop.
    if constexpr (Shape::kQueryStages == 1) asm volatile("" : "+r"(q));
#pragma unroll
    for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
      const std::uint32_t inside = step % 4 * 32;
      Products<T, Shape::kColumns>::ss(s, tile_descriptor(q + step / 4 * (Shape::kRows * kPanel * 2) + inside, 16),
                                       tile_descriptor(k + step / 4 * (Shape::kColumns * kPanel * 2) + inside, 16),
                                       step > 0);
    }
    wgmma_commit();
  }

  /// o += p v
  __device__ __forceinline__ void multiply_values(float (&o)[kOutputs], const std::uint32_t (&p)[kSteps][4]) {
    const std::uint32_t v = shared_address(shared_.v[values_.slot]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Products<T, Shape::kValueDim>::rs(o, p[step],
                                        tile_descriptor(v + step * 16 * kPanel * 2, Shape::kColumns * kPanel * 2), 1);
    wgmma_commit();
  }

  /// Bits of the thread's two rows.
  __device__ __forceinline__ void take_bits(std::uint32_t (&masked)[2]) {
    barrier_wait(&shared_.bits_full[bits_.slot], bits_.phase);
    const std::uint32_t* words = shared_.bits[bits_.slot].words + lane() % 4 * TileBits<Shape::kRows>::kPitch + row_;
    masked[0] = words[0];
    masked[1] = words[8];
    release(&shared_.bits_empty[bits_.slot]);
    bits_.advance();
  }

  static __device__ __forceinline__ void hide(float (&s)[kScores], const std::uint32_t (&masked)[2]) {
    // One row after the other: the compiler then moves a word's bits into predicates all at once.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i)
        if (masked[row] & (1U << i)) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
    }
  }

  /// Follows the maxima of the rows once they grew by more than the threshold; `factor` is what sums so far then shrink
  /// by. A lagging maximum changes no result but for rounding, as numerator and denominator share it.
  __device__ __forceinline__ bool raise_maximum(const float (&s)[kScores], float (&factor)[2]) {
    float found[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) found[i % 4 / 2] = fmaxf(found[i % 4 / 2], s[i]);
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

  /// Accumulators of one product are, packed, the operand of the next.
  __device__ __forceinline__ void round(std::uint32_t (&p)[kSteps][4], const float (&s)[kScores]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = pack<T>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
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
    store_rows(o, inverse, tile, first);
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

  /// Four groups of eight columns at a time: a quad exchanges words, so that each thread stores 16 bytes of one group.
  __device__ __forceinline__ void store_rows(const float (&o)[kOutputs], const float (&inverse)[2], const RowTile& tile,
                                             int first) {
    T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
    const int quad = lane() % 4;
#pragma unroll
    for (int group = 0; group < Shape::kValueDim / 32; ++group) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (group * 4 + i) * 4 + row * 2;
          words[i] = pack<T>(o[at] * inverse[row], o[at + 1] * inverse[row]);
        }
        transpose_in_quad(words, quad);
        const int column = group * 32 + quad * 8;
        const int query = first + 8 * row;
        if (query < arguments_.query_length && column < arguments_.value_dim)
          *reinterpret_cast<uint4*>(out + query * arguments_.o_row + column) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  /// words[i] of thread t becomes words[t] of thread i.
  static __device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int quad) {
    exchange<1>(words[0], words[1], quad);
    exchange<1>(words[2], words[3], quad);
    exchange<2>(words[0], words[2], quad);
    exchange<2>(words[1], words[3], quad);
  }

  template <int kDistance>
  static __device__ __forceinline__ void exchange(std::uint32_t& low, std::uint32_t& high, int quad) {
    const bool upper = (quad & kDistance) != 0;
    const std::uint32_t received = __shfl_xor_sync(~0U, upper ? low : high, kDistance);
    (upper ? low : high) = received;
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  int group_;
  int row_;  // of the row tile; the thread's second row is 8 further on
  float maximum_[2], sum_[2];
  RingPosition<kWorkSlots> work_;
  RingPosition<kBitSlots> bits_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kStages> keys_, values_;
};

}  // namespace flashmask::cuda::sm90
