// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/row_product.cuh"
#include "cuda/sm80/walk/walk_block.cuh"

/// What the backward computes beside its walks: the gradients of divisors before them, those of gates and the sums over
/// groups of heads behind them.
namespace flashmask::cuda::sm80 {

struct DivisorArguments {
  WalkPlanView plan;
  WalkTensor o, grad_o;
  float* gradient;  ///< in: minus what the product of o and grad_o is to be multiplied by; out: times that
};

/// Multiplies by the products of rows of o and their gradients, a warp per row in turn, a block per stretch and head.
template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    walk_divisors_kernel(const __grid_constant__ DivisorArguments arguments) {
  const int head = static_cast<int>(blockIdx.x) % arguments.plan.heads, lane = lane_index();
  const WalkStretch& own = arguments.plan.stretches[static_cast<int>(blockIdx.x) / arguments.plan.heads];
  const Rows o = arguments.o.of(own.batch, head), grad_o = arguments.grad_o.of(own.batch, head);
  float* const gradient =
      arguments.gradient + (static_cast<std::int64_t>(head) * arguments.plan.steps + own.first_step) * kWalkTokens;
  for (int token = static_cast<int>(thread_index()) / 32; token < own.tokens; token += kWalkThreads / 32) {
    const float product = product_of_rows<T>(o.first + (own.row + token) * o.stride,
                                             grad_o.first + (own.row + token) * grad_o.stride, o.dim);
    if (lane == 0) gradient[token] *= product;
  }
}

struct GateGradientArguments {
  WalkArguments walk;  ///< the role of queries, with x = ∂o and y = v
  WalkTensor q, k;
  float scale;
  const float *of_queries, *of_keys, *across;  ///< what the walks left
  GateGradients log_forget, log_input;
  bool adds;  ///< to what earlier slices of keys and values left
};

template <class Shape>
struct GateGradientMemory {
  alignas(16) std::uint8_t q[Shape::InnerTile::kBytes], k[Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t grad_o[Shape::InnerTile::kBytes], v[Shape::InnerTile::kBytes];
  float crossing[Shape::kWarps][kWalkTokens], of_columns[Shape::kWarps][kWalkTokens];
  float of_queries[kWalkTokens], of_keys[kWalkTokens];
  StretchGates gates;
};

/// The gradients of the gates of one step of one head. That of log_forget of a token adds what each pair adds whose key
/// lies before the token and whose row does not: pairs in the step, pairs whose key or row is outside, and pairs of
/// which both are. Nothing is subtracted, so that small gradients keep their digits beside large terms.
template <class Shape>
class GateGradientBlock {
  using T = typename Shape::Element;
  using Tile = typename Shape::InnerTile;

 public:
  __device__ __forceinline__ GateGradientBlock(GateGradientMemory<Shape>& shared,
                                               const GateGradientArguments& arguments)
      : shared_(shared),
        arguments_(arguments),
        head_(static_cast<int>(blockIdx.x) % arguments.walk.plan.heads),
        number_(static_cast<int>(blockIdx.x) / arguments.walk.plan.heads) {}

  __device__ __forceinline__ void run() {
    const WalkArguments& walk = arguments_.walk;
    StretchGates& gates = shared_.gates;
    const int stretch = walk.plan.stretch_of_step[number_], step = number_ - walk.plan.stretches[stretch].first_step;
    gates.begin(walk, stretch, head_, false);
    copy(shared_.q, arguments_.q, step);
    copy(shared_.k, arguments_.k, step);
    copy(shared_.grad_o, walk.x, step);
    copy(shared_.v, walk.y, step);
    gates.ask(walk, step);
    commit_copies();
    await_copies<0>();
    gates.make(walk, step);
    __syncthreads();
    float s[8][4] = {}, grad[8][4] = {};
    multiply_rows(s, shared_.q, shared_.k);
    multiply_rows(grad, shared_.grad_o, shared_.v);
    weigh(s, grad, gates.factors[step % 2]);
    add_columns(s);
    add_crossing(s);
    const std::int64_t of_head = static_cast<std::int64_t>(head_) * walk.plan.steps + number_;
    load_parts(of_head);
    __syncthreads();
    const int token = static_cast<int>(thread_index());
    if (token < gates.tokens_of(step)) write(token, gates.row_of(step) + token, of_head);
  }

 private:
  __device__ __forceinline__ void copy(std::uint8_t* tile, const WalkTensor& tensor, int step) const {
    Tile::template copy<kWalkThreads>(shared_address(tile), shared_.gates.rows_of(tensor, step),
                                      shared_.gates.row_of(step), thread_index());
  }

  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }

  /// Computes the products of the warp's rows and those that they see.
  __device__ __forceinline__ void multiply_rows(float (&s)[8][4], const std::uint8_t* rows,
                                                const std::uint8_t* seen) const {
    const std::uint32_t a = shared_address(rows) + Tile::lane_rows() + Tile::step(16 * warp(), 0),
                        b = shared_address(seen) + Tile::lane_columns();
#pragma unroll
    for (int panel = 0; panel < Shape::kInner / 16; ++panel) {
      std::uint32_t own[4];
      load_matrices(own, a + Tile::step(0, panel));
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen) {
        std::uint32_t other[4];
        load_matrices(other, b + Tile::step(16 * sixteen, panel));
        multiply<T>(s[2 * sixteen], own, other[0], other[1]);
        multiply<T>(s[2 * sixteen + 1], own, other[2], other[3]);
      }
    }
  }

  /// Turns the scores into what each pair adds to the gradients of the gates between its tokens; 0 where there is none.
  __device__ __forceinline__ void weigh(float (&s)[8][4], const float (&grad)[8][4], const StepFactors& factors) const {
    const int quad = lane_index() % 4, row = 16 * warp() + lane_index() / 4;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = row + i / 2 * 8, column = 8 * eight + 2 * quad + i % 2;
        const float exponent = (factors.rows_high[token] - factors.summed_high[column]) +
                               (factors.rows_low[token] - factors.summed_low[column]);
        const float product = exp2_approximate(exponent) * (arguments_.scale * s[eight][i]) *
                              (factors.pair[token] * grad[eight][i] + factors.pair_extra[token]);
        s[eight][i] = column <= token ? product : 0;
      }
  }

  /// Leaves the sums of columns over the warp's rows.
  __device__ __forceinline__ void add_columns(const float (&s)[8][4]) {
#pragma unroll
    for (int eight = 0; eight < 8; ++eight)
#pragma unroll
      for (int i = 0; i < 2; ++i) leave(shared_.of_columns, s[eight][i] + s[eight][i + 2], eight, i);
  }

  /// Leaves, for each token t, the sum of the pairs of keys before t and the warp's rows from t on.
  __device__ __forceinline__ void add_crossing(const float (&s)[8][4]) {
    const int quad = lane_index() % 4, row = 16 * warp() + lane_index() / 4;
    float before[2] = {};  // the sum of the row's earlier columns
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      float crossing[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float own = s[eight][2 * half] + s[eight][2 * half + 1];
        float sum = own;
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
          const float earlier = __shfl_up_sync(~0U, sum, distance);
          if (quad >= distance) sum += earlier;
        }
        const float last = __shfl_up_sync(~0U, sum, 1);
        const float first = before[half] + (quad == 0 ? 0 : last);
        const int token = row + 8 * half, column = 8 * eight + 2 * quad;
        if (column <= token) crossing[0] += first;
        if (column + 1 <= token) crossing[1] += first + s[eight][2 * half];
        before[half] += __shfl_sync(~0U, sum, lane_index() | 3);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) leave(shared_.crossing, crossing[i], eight, i);
    }
  }

  __device__ __forceinline__ void leave(float (&to)[Shape::kWarps][kWalkTokens], float sum, int eight, int i) const {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane_index() < 4) to[warp()][8 * eight + 2 * lane_index() + i] = sum;
  }

  /// Loads what the walks left of pairs of which one is outside.
  __device__ __forceinline__ void load_parts(std::int64_t of_head) {
    const auto thread = static_cast<int>(thread_index());
    const bool of_keys = thread >= kWalkTokens;
    const float* from =
        (of_keys ? arguments_.of_keys : arguments_.of_queries) + of_head * kWalkTokens + thread % kWalkTokens;
    (of_keys ? shared_.of_keys : shared_.of_queries)[thread % kWalkTokens] = *from;
  }

  __device__ __forceinline__ void write(int token, int row, std::int64_t of_head) const {
    const int batch = shared_.gates.stretch.batch;
    float of_column = shared_.of_keys[token], sum = 0;
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      of_column += shared_.of_columns[warp][token];
      sum += shared_.crossing[warp][token];
    }
    const auto leave_gradient = [&](const GateGradients& to, float number) {
      float& place = to.data[batch * to.batch + row * to.row + head_ * to.head];
      place = arguments_.adds ? place + number : number;
    };
    if (arguments_.log_input.data != nullptr) leave_gradient(arguments_.log_input, of_column);
    if (arguments_.log_forget.data == nullptr) return;
    sum += arguments_.across[of_head];
#pragma unroll 4
    for (int other = 0; other < kWalkTokens; ++other)
      sum += other < token ? shared_.of_keys[other] : shared_.of_queries[other];
    leave_gradient(arguments_.log_forget, sum);
  }

  GateGradientMemory<Shape>& shared_;
  const GateGradientArguments& arguments_;
  const int head_, number_;
};

template <class Shape>
__global__ void __launch_bounds__(kWalkThreads)
    walk_gate_gradient_kernel(const __grid_constant__ GateGradientArguments arguments) {
  GateGradientBlock<Shape>(shared_memory<GateGradientMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
