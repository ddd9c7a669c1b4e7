// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/arithmetic.cuh"

/// What becomes of a tile's scores between its products. A thread holds them as it holds accumulators: of row l / 4 of
/// its warp's 16 and of the row 8 further on, columns 8 i + 2 (l % 4) and + 1; or transposed, when it holds two keys.
namespace flashmask::cuda {

/// A number for each of the thread's rows of transposed scores, which are 8 i + 2 (lane % 4) and + 1.
template <int kRows>
using RowPairs = float2[kRows / 8];

/// Accumulators of one product are, packed, the operand of the next.
template <class T, int kSteps>
__device__ __forceinline__ void pack_all(std::uint32_t (&packed)[kSteps][4], const float (&s)[8 * kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[step][i] = pack<T>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
}

/// masked: bits of the thread's two rows, in the order of FragmentBits.
template <int kScores>
__device__ __forceinline__ void hide_in_rows(float (&s)[kScores], const std::uint32_t (&masked)[2]) {
  // One row after the other: the compiler then moves a word's bits into predicates all at once.
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      if (masked[row] & (1U << i)) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
  }
}

/// masked: words of the thread, as ColumnMask makes them.
template <int kScores, int kWords>
__device__ __forceinline__ void hide_transposed(float (&s)[kScores], const std::uint32_t (&masked)[kWords]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int h = i / (kScores / 2), at = i % (kScores / 2);
    if (masked[i / 32] & (1U << i % 32)) s[at / 2 * 4 + h * 2 + at % 2] = -INFINITY;
  }
}

/// Scores of rows become probabilities. Rows that see nothing have lse = +∞ here, and probabilities of 0.
template <int kScores>
__device__ __forceinline__ void exponentiate_rows(float (&s)[kScores], float scale_log2, const float (&lse_log2)[2]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i] = exp2_approximate(fmaf(s[i], scale_log2, -lse_log2[i % 4 / 2]));
}

/// Probabilities of rows become gradients of their scores.
template <int kScores>
__device__ __forceinline__ void differentiate_rows(float (&p)[kScores], const float (&grad_p)[kScores],
                                                   const float (&dot)[2]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) p[i] *= grad_p[i] - dot[i % 4 / 2];
}

/// The same with dropout: gradients of dropped probabilities are 0, the others are still to be scaled.
template <int kScores>
__device__ __forceinline__ void differentiate_rows(float (&p)[kScores], const float (&grad_p)[kScores],
                                                   const float (&dot)[2], float scale) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) p[i] *= fmaf(grad_p[i], scale, -dot[i % 4 / 2]);
}

/// Transposed scores become probabilities.
template <int kScores, int kPairs>
__device__ __forceinline__ void exponentiate_transposed(float (&s)[kScores], float scale_log2,
                                                        const float2 (&lse_log2)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i)
    s[i] = exp2_approximate(fmaf(s[i], scale_log2, i % 2 == 0 ? -lse_log2[i / 4].x : -lse_log2[i / 4].y));
}

/// Transposed gradients of probabilities become those of scores.
template <int kScores, int kPairs>
__device__ __forceinline__ void differentiate_transposed(float (&grad)[kScores], const float (&p)[kScores],
                                                         const float2 (&dots)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) grad[i] = p[i] * (grad[i] - (i % 2 == 0 ? dots[i / 4].x : dots[i / 4].y));
}

/// The same with dropout, as differentiate_rows() has it.
template <int kScores, int kPairs>
__device__ __forceinline__ void differentiate_transposed(float (&grad)[kScores], const float (&p)[kScores],
                                                         const float2 (&dots)[kPairs], float scale) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) grad[i] = p[i] * fmaf(grad[i], scale, i % 2 == 0 ? -dots[i / 4].x : -dots[i / 4].y);
}

/// From a number for each row of a tile.
template <int kPairs>
__device__ __forceinline__ void load_pairs(float2 (&pairs)[kPairs], const float* rows) {
  const auto* from = reinterpret_cast<const float2*>(rows) + lane_index() % 4;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) pairs[i] = from[4 * i];
}

}  // namespace flashmask::cuda
