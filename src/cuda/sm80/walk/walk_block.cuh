// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/instructions/store_units.cuh"
#include "cuda/sm80/walk/stretch_gates.cuh"

/// The products of a step of linear attention (docs/linear.md). A block walks the steps of one stretch of one head and
/// keeps its state, transposed, in float32: each of the four warps has a quarter of the columns, one or two units of
/// 16, over all inner dims. Accumulators of the transposed state have the layout of fragments b of the state, so that
/// products with it read nothing but the other operand from shared memory:
///
///     out [64 rows × columns]      = x [64 × inner] state  +  scores [64 × 64] z
///     stateᵀ [columns × inner]     = gain stateᵀ + (zᵀ weights) [columns × 64] y
namespace flashmask::cuda::sm80 {

template <class T, int kInner_, int kColumns_>
struct WalkShape {
  using Element = T;
  static constexpr int kInner = kInner_, kColumns = kColumns_, kWarps = kWalkThreads / 32;
  static constexpr int kUnits = kColumns / (16 * kWarps);  ///< of 16 columns, per warp
  static constexpr int kBlocks = kUnits == 1 ? 3 : 2;      ///< per multiprocessor
  using InnerTile = SharedTile<kWalkTokens, kInner>;
  using ColumnTile = SharedTile<kWalkTokens, kColumns>;
  using ScoreTile = SharedTile<kWalkTokens, kWalkTokens>;
};

template <class Shape>
struct WalkMemory {
  alignas(16) std::uint8_t x[Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t y[2][Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t z[Shape::ColumnTile::kBytes];
  alignas(16) std::uint8_t scores[Shape::ScoreTile::kBytes];
  alignas(16) float vector[Shape::kInner > Shape::kColumns ? Shape::kInner : Shape::kColumns];
  StretchGates gates;
};

/// The shared memory of walks with a counterpart.
template <class Shape>
struct CounterpartMemory : WalkMemory<Shape> {
  alignas(16) std::uint8_t counterpart[Shape::ColumnTile::kBytes];
  float dots[Shape::kWarps][kWalkTokens];
  float across[Shape::kWarps];
};

/// Where a block works.
struct WalkItem {
  int stretch, head;

  __device__ __forceinline__ WalkItem(const WalkPlanView& plan, int block)
      : stretch(plan.order[block / plan.heads]), head(block % plan.heads) {}
};

/// The state of a block, and what reads and writes it.
template <class Shape>
class WalkState {
  using T = typename Shape::Element;
  using InnerTile = typename Shape::InnerTile;
  using ColumnTile = typename Shape::ColumnTile;
  static constexpr int kPanels = Shape::kInner / 16, kUnits = Shape::kUnits;

 public:
  using Sums = float[kUnits][2 * kPanels][4];
  using Result = float[4][2 * kUnits][4];  ///< the warp's columns of the rows of a step, by 16 rows and 8 columns

  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  /// The warp's first unit among those of the block, and its first column.
  static __device__ __forceinline__ int own_unit() { return kUnits * warp(); }
  static __device__ __forceinline__ int own_column() { return 16 * own_unit(); }

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
    const int lane = lane_index();
    const std::int64_t next = matrix.inner_stride, below = 8 * matrix.column_stride, step = 8 * matrix.inner_stride;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int column = own_column() + 16 * unit + lane / 4;
      Number* at = matrix.first + lane % 4 * 2 * matrix.inner_stride + column * matrix.column_stride;
      const bool has[2] = {column < matrix.columns, column + 8 < matrix.columns};
#pragma unroll
      for (int eight = 0; eight < 2 * kPanels; ++eight, at += step) {
        const bool has_eight = 8 * eight < matrix.inner_dim;
        float(&numbers)[4] = state[unit][eight];
        body(numbers[0], at, has_eight && has[0]);
        body(numbers[1], at + next, has_eight && has[0]);
        body(numbers[2], at + below, has_eight && has[1]);
        body(numbers[3], at + below + next, has_eight && has[1]);
      }
    }
  }

  /// Computes out = x state for the rows of a step.
  static __device__ __forceinline__ void read(Result& out, const Sums& state, std::uint32_t x) {
    const std::uint32_t a = x + InnerTile::lane_rows();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t b[2 * kUnits][2];
#pragma unroll
      for (int eight = 0; eight < 2 * kUnits; ++eight)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&numbers)[4] = state[eight / 2][2 * panel + i];
          b[eight][i] = pack<T>(numbers[eight % 2 * 2], numbers[eight % 2 * 2 + 1]);
        }
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen) {
        std::uint32_t rows[4];
        load_matrices(rows, a + InnerTile::step(16 * sixteen, panel));
#pragma unroll
        for (int eight = 0; eight < 2 * kUnits; ++eight)
          multiply<T>(out[sixteen][eight], rows, b[eight][0], b[eight][1], panel == 0);
      }
    }
  }

  /// Computes state = gain state + Σ into z yᵀ over the tokens of a step.
  static __device__ __forceinline__ void add(Sums& state, std::uint32_t y, std::uint32_t z,
                                             const StepFactors& factors) {
    const float gain = factors.gain;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int eight = 0; eight < 2 * kPanels; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) state[unit][eight][i] *= gain;
    const std::uint32_t a = z + ColumnTile::lane_columns() + ColumnTile::step(0, own_unit()),
                        b = y + InnerTile::lane_rows();
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      std::uint32_t columns[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        load_matrices_transposed(columns[unit], a + ColumnTile::step(16 * sixteen, unit));
      weigh(columns, factors.into + 16 * sixteen);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        std::uint32_t inner[4];
        load_matrices_transposed(inner, b + InnerTile::step(16 * sixteen, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(state[unit][2 * panel], columns[unit], inner[0], inner[1]);
          multiply<T>(state[unit][2 * panel + 1], columns[unit], inner[2], inner[3]);
        }
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

 private:
  /// Multiplies the columns of 16 tokens by the tokens' weights.
  static __device__ __forceinline__ void weigh(std::uint32_t (&columns)[kUnits][4], const float* weights) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 weight = two_of(weights + 8 * half + lane_index() % 4 * 2);
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float2 numbers = unpack<T>(columns[unit][i]);
          columns[unit][i] = pack<T>(numbers.x * weight.x, numbers.y * weight.y);
        }
    }
  }
};

}  // namespace flashmask::cuda::sm80
