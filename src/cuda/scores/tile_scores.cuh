// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"

/// What happens to a tile's scores between its products, for the kernels of every family. A warp holds scores as its
/// accumulators: float[units][eights][4].
///
///   by rows      a unit is 16 query rows, an eight is 8 keys
///   transposed   a unit is 16 keys, an eight is 8 query rows
///
/// In each unit and eight, lane l holds numbers 0 and 1 of line l / 4 of the unit, at places 2 (l % 4) and + 1 of the
/// eight, and numbers 2 and 3 of the line 8 further on.
namespace flashmask::cuda {

/// The flat accumulators of a wgmma product as scores of one unit.
template <int kScores>
__device__ __forceinline__ float (&as_unit(float (&s)[kScores]))[1][kScores / 4][4] {
  return reinterpret_cast<float(&)[1][kScores / 4][4]>(s);
}
template <int kScores>
__device__ __forceinline__ const float (&as_unit(const float (&s)[kScores]))[1][kScores / 4][4] {
  return reinterpret_cast<const float(&)[1][kScores / 4][4]>(s);
}
/// The operand of such a product, 16 places of the inner side per step.
template <int kSteps>
__device__ __forceinline__ std::uint32_t (&as_unit(std::uint32_t (&packed)[kSteps][4]))[kSteps][1][4] {
  return reinterpret_cast<std::uint32_t(&)[kSteps][1][4]>(packed);
}

/// One number per query row, for scores by rows: those of the lane's lines.
template <int kUnits>
struct RowNumbers {
  float numbers[kUnits][2];

  /// `rows`: in shared memory, from the warp's first row on.
  __device__ __forceinline__ void load(const float* rows) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int half = 0; half < 2; ++half) numbers[unit][half] = rows[16 * unit + 8 * half + lane_index() / 4];
  }
  __device__ __forceinline__ float at(int unit, int, int i) const { return numbers[unit][i / 2]; }
};

/// One number per query row, for transposed scores: those of the lane's places.
template <int kEights>
struct TransposedRowNumbers {
  float2 numbers[kEights];

  __device__ __forceinline__ void load(const float* rows) {
    const auto* from = reinterpret_cast<const float2*>(rows) + lane_index() % 4;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) numbers[eight] = from[4 * eight];
  }
  __device__ __forceinline__ float at(int, int eight, int i) const {
    return i % 2 == 0 ? numbers[eight].x : numbers[eight].y;
  }
};

/// One number per query row, for transposed scores, read from shared memory at each use.
struct StoredTransposedRowNumbers {
  const float* rows;

  __device__ __forceinline__ float at(int, int eight, int i) const {
    const float2 two = reinterpret_cast<const float2*>(rows)[4 * eight + lane_index() % 4];
    return i % 2 == 0 ? two.x : two.y;
  }
};

/// A bit of a lane's words: bit `bit` of words[word].
struct BitPlace {
  int word, bit;
};

/// Calls body(unit, eight, i) for each score of the lane.
template <int kUnits, int kEights, class Body>
__device__ __forceinline__ void for_each_score(const Body& body) {
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) body(unit, eight, i);
}

/// Sets the scores whose bit is set in `words` to `value`. Layout::place(unit, eight, i), a BitPlace, says
/// which bit that is.
template <class Layout, int kUnits, int kEights, int kWords>
__device__ __forceinline__ void replace(float (&s)[kUnits][kEights][4], const std::uint32_t (&words)[kWords],
                                        float value) {
  // One line after the other: the compiler then moves a word's bits into predicates all at once.
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        const auto [word, bit] = Layout::place(unit, i / 2, 2 * half + i % 2);
        if (words[word] & 1U << bit) s[unit][i / 2][2 * half + i % 2] = value;
      }
    }
  }
}

/// Hides masked scores: they become −∞.
template <class Layout, int kUnits, int kEights, int kWords>
__device__ __forceinline__ void hide(float (&s)[kUnits][kEights][4], const std::uint32_t (&masked)[kWords]) {
  replace<Layout>(s, masked, -INFINITY);
}

/// Turns scores into probabilities. Rows that see nothing have lse = +∞ here, and probabilities of 0.
template <int kUnits, int kEights, class Rows>
__device__ __forceinline__ void exponentiate(float (&s)[kUnits][kEights][4], float scale_log2, const Rows& lse_log2) {
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    s[unit][eight][i] = exp2_approximate(fmaf(s[unit][eight][i], scale_log2, -lse_log2.at(unit, eight, i)));
  });
}

/// Turns gradients of probabilities into gradients of scores.
template <int kUnits, int kEights, class Rows>
__device__ __forceinline__ void differentiate(float (&grad)[kUnits][kEights][4], const float (&p)[kUnits][kEights][4],
                                              const Rows& dots) {
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    grad[unit][eight][i] = p[unit][eight][i] * (grad[unit][eight][i] - dots.at(unit, eight, i));
  });
}

/// Does so with dropout: gradients of dropped probabilities are 0, the others are still to be multiplied by `factor`.
template <int kUnits, int kEights, class Rows>
__device__ __forceinline__ void differentiate(float (&grad)[kUnits][kEights][4], const float (&p)[kUnits][kEights][4],
                                              const Rows& dots, float factor) {
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    grad[unit][eight][i] = p[unit][eight][i] * fmaf(grad[unit][eight][i], factor, -dots.at(unit, eight, i));
  });
}

/// Packs scores as the operand of the next product: accumulators already lie as it reads them, 16 places per step.
template <class T, int kUnits, int kSteps, int kEights>
__device__ __forceinline__ void pack(std::uint32_t (&packed)[kSteps][kUnits][4], const float (&s)[kUnits][kEights][4]) {
  static_assert(kEights == 2 * kSteps);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = s[unit][2 * step + i / 2];
        packed[step][unit][i] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
}

/// Where a warp's scores lie: the query head, and the first row and column of the sequence, multiples of 8.
struct PlaceByRows {
  static constexpr bool kPairsColumns = true;  // scores 2 n and 2 n + 1 are neighbours in a row
  static constexpr bool kTakesBias = true;     // whether tensors of biases are read
  static constexpr bool kTakesEights = true;   // eight values at a time where they allow it
  int batch, head, first_row, first_column;

  /// Row and column of the lane's first score; its others lie rows_to() rows and columns_to() columns further on.
  __device__ __forceinline__ int row(int lane) const { return first_row + lane / 4; }
  __device__ __forceinline__ int column(int lane) const { return first_column + lane % 4 * 2; }
  static __device__ __forceinline__ constexpr int rows_to(int unit, int, int i) { return 16 * unit + i / 2 * 8; }
  static __device__ __forceinline__ constexpr int columns_to(int, int eight, int i) { return 8 * eight + i % 2; }
};
/// Where a warp's transposed scores lie, whose lines are columns.
struct TransposedPlace {
  static constexpr bool kPairsColumns = false, kTakesBias = true, kTakesEights = true;
  int batch, head, first_row, first_column;

  __device__ __forceinline__ int row(int lane) const { return first_row + lane % 4 * 2; }
  __device__ __forceinline__ int column(int lane) const { return first_column + lane / 4; }
  static __device__ __forceinline__ constexpr int rows_to(int, int eight, int i) { return 8 * eight + i % 2; }
  static __device__ __forceinline__ constexpr int columns_to(int unit, int, int i) { return 16 * unit + i / 2 * 8; }
};

}  // namespace flashmask::cuda
