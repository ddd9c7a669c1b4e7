// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/sm80/instructions/shared_tile.cuh"
#include "cuda/sm80/instructions/store_units.cuh"
#include "cuda/sm80/walk/stretch_gates.cuh"

/// The products of a step of linear attention (docs/linear.md). A block walks the steps of one stretch of one head and
/// keeps kWalkColumns columns of its state, transposed: each of the four warps has 16 of them, over all inner dims, in
/// float32. Accumulators of the transposed state have the layout of fragments a, so that products with it read nothing
/// but the other operand from shared memory:
///
///     outᵀ [16 columns × 64 rows]    = stateᵀ [16 × inner] xᵀ  +  zᵀ [16 × 64] scoresᵀ
///     stateᵀ [16 columns × inner]    = gain stateᵀ + (zᵀ weights) [16 × 64] y
namespace flashmask::cuda::sm80 {

template <class T, int kInner_>
struct WalkShape {
  using Element = T;
  static constexpr int kInner = kInner_, kWarps = kWalkThreads / 32;
  using InnerTile = SharedTile<kWalkTokens, kInner>;
  using ColumnTile = SharedTile<kWalkTokens, kWalkColumns>;
  using ScoreTile = SharedTile<kWalkTokens, kWalkTokens>;
};

template <class Shape>
struct WalkMemory {
  alignas(16) std::uint8_t x[2][Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t y[2][Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t z[Shape::ColumnTile::kBytes];
  alignas(16) std::uint8_t counterpart[Shape::ColumnTile::kBytes];
  alignas(16) std::uint8_t scores[Shape::ScoreTile::kBytes];
  alignas(16) float vector[Shape::kInner];
  float dots[Shape::kWarps][kWalkTokens];
  float across[Shape::kWarps];
  StretchGates gates;
};

/// Where a block works.
struct WalkItem {
  int stretch, head, slice;

  __device__ __forceinline__ WalkItem(const WalkArguments& arguments, std::int64_t block) {
    slice = static_cast<int>(block % arguments.slices);
    const std::int64_t rest = block / arguments.slices;
    head = static_cast<int>(rest % arguments.plan.heads);
    stretch = arguments.plan.order[rest / arguments.plan.heads];
  }
};

/// The state of a block, and what reads and writes it.
template <class Shape>
class WalkState {
  using T = typename Shape::Element;
  using InnerTile = typename Shape::InnerTile;
  using ColumnTile = typename Shape::ColumnTile;
  static constexpr int kPanels = Shape::kInner / 16;

 public:
  using Sums = float[2 * kPanels][4];

  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  /// The warp's first column in its slice.
  static __device__ __forceinline__ int own_column() { return 16 * warp(); }

  /// A matrix in global memory that holds a block's part of a state.
  template <class Number>
  struct Matrix {
    Number* first;
    std::int64_t inner_stride, column_stride;
    int inner_dim, columns;  // multiples of 8; numbers past them do not exist
  };

  /// Calls body(number, where it is in the matrix, whether it exists there) for the thread's numbers.
  template <class Number, class Body>
  static __device__ __forceinline__ void for_each(Sums& state, const Matrix<Number>& matrix, const Body& body) {
    const int lane = lane_index(), column = own_column() + lane / 4;
    Number* at = matrix.first + lane % 4 * 2 * matrix.inner_stride + column * matrix.column_stride;
    const std::int64_t next = matrix.inner_stride, below = 8 * matrix.column_stride, step = 8 * matrix.inner_stride;
    const bool has[2] = {column < matrix.columns, column + 8 < matrix.columns};
#pragma unroll
    for (int eight = 0; eight < 2 * kPanels; ++eight, at += step) {
      const bool has_eight = 8 * eight < matrix.inner_dim;
      body(state[eight][0], at, has_eight && has[0]);
      body(state[eight][1], at + next, has_eight && has[0]);
      body(state[eight][2], at + below, has_eight && has[1]);
      body(state[eight][3], at + below + next, has_eight && has[1]);
    }
  }

  /// Computes out += state x for the rows of a step.
  static __device__ __forceinline__ void read(float (&out)[8][4], const Sums& state, std::uint32_t x) {
    const std::uint32_t b = x + InnerTile::lane_columns();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const float(&low)[4] = state[2 * panel];
      const float(&high)[4] = state[2 * panel + 1];
      const std::uint32_t a[4] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]), pack<T>(high[0], high[1]),
                                  pack<T>(high[2], high[3])};
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen) {
        std::uint32_t rows[4];
        load_matrices(rows, b + InnerTile::step(16 * sixteen, panel));
        multiply<T>(out[2 * sixteen], a, rows[0], rows[1]);
        multiply<T>(out[2 * sixteen + 1], a, rows[2], rows[3]);
      }
    }
  }

  /// Computes state = gain state + Σ into z yᵀ over the tokens of a step.
  static __device__ __forceinline__ void add(Sums& state, std::uint32_t y, std::uint32_t z,
                                             const StepFactors& factors) {
    const float gain = factors.gain;
#pragma unroll
    for (int eight = 0; eight < 2 * kPanels; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) state[eight][i] *= gain;
    const std::uint32_t a = z + ColumnTile::lane_columns() + ColumnTile::step(0, warp()),
                        b = y + InnerTile::lane_rows();
    const int quad = lane_index() % 4;
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      std::uint32_t columns[4];
      load_matrices_transposed(columns, a + ColumnTile::step(16 * sixteen, 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 weight = two_of(factors.into + 16 * sixteen + 8 * half + 2 * quad);
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float2 numbers = unpack<T>(columns[i]);
          columns[i] = pack<T>(numbers.x * weight.x, numbers.y * weight.y);
        }
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        std::uint32_t inner[4];
        load_matrices_transposed(inner, b + InnerTile::step(16 * sixteen, panel));
        multiply<T>(state[2 * panel], columns, inner[0], inner[1]);
        multiply<T>(state[2 * panel + 1], columns, inner[2], inner[3]);
      }
    }
  }

  /// Computes vector = gain vector + Σ into_extra tile over the tokens of a step, for `Tile::kDim` dims.
  template <class Tile>
  static __device__ __forceinline__ void add_vector(float* vector, const std::uint8_t* tile,
                                                    const StepFactors& factors) {
    const int pair = static_cast<int>(thread_index()), dim = 2 * pair;
    if (dim >= Tile::kDim) return;
    const std::uint8_t* const from = tile + Tile::step(0, dim / 16) + dim % 8 * 2;
    float low = vector[dim] * factors.gain, high = vector[dim + 1] * factors.gain;
#pragma unroll 4
    for (int token = 0; token < kWalkTokens; ++token) {
      const auto word = *reinterpret_cast<const std::uint32_t*>(from + Tile::chunk(token, dim % 16 / 8));
      const float2 numbers = unpack<T>(word);
      low += factors.into_extra[token] * numbers.x;
      high += factors.into_extra[token] * numbers.y;
    }
    vector[dim] = low;
    vector[dim + 1] = high;
  }
};

}  // namespace flashmask::cuda::sm80
