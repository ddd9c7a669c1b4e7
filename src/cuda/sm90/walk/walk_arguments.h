// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/linear_arguments.h"
#include "cuda/common/linear_slices.h"

/// The arguments of Hopper's walk of linear attention: plain pointers and sizes. A walk computes, with x, y and z,
///
///     out(i) = Σ_j D(i, j) scale (x(i) · y(j)) z(j)     of the output (q, k, v)
///
/// where x and y have `inner` dims, and z and out `columns`. A block keeps the state of one head and up to kColumns
/// columns of z, a slice, while it walks through whole trees.
namespace flashmask::cuda::sm90 {

inline constexpr int kWalkTokens = 64;         ///< of a step
inline constexpr int kReverseDim = kSliceDim;  ///< keys and values of a slice, in walks for gradients

/// Where the state before a step comes from, if from no slot: it goes on from the step before; below −1, it is that of
/// a root, whose number is −2 − from.
inline constexpr int kGoesOn = -1, kFirstRoot = -2;

/// Beside the number of a slot.
inline constexpr int kAdds = 1 << 30;

/// A step: up to kWalkTokens tokens of one node, of one head and slice. A forward has slices of values, its columns; of
/// walks for gradients, each number of which is a sum over slices of keys and of values, values are the inner slices
/// and keys the column slices.
struct alignas(16) WalkVisit {
  int batch, row;
  std::uint8_t tokens, slice, inner_slice, column_slice;
  int head;
  int from;  ///< a slot of the block, where an earlier step kept the state before this one; or as above
  int keep;  ///< the slot that is to keep the state behind it; −1: none; in the walk back, below −1: that of a root
  int node;  ///< the node that ends with it; −1: none does
  int step;  ///< its number among the steps of the plan
};

struct WalkMaps {
  CUtensorMap x, y, z, out_rows, out_row;
  CUtensorMap counterpart;  ///< of walks that leave GateParts: a tensor like z
};

/// What the two walks of a backward leave for the gradients of gates. Arrays of floats have one number per token, or
/// per step: [head][slice][step][kWalkTokens], [head][slice][step].
struct GateParts {
  uint4* states;   ///< before each step, in 16 bits, in the order of the threads that hold them:
                   ///< [head][slice][step][16][128]
  float* vectors;  ///< beside them: [head][slice][step][kReverseDim]
  float *crossing, *of_queries, *of_keys, *of_inputs;
  float* across;
  int steps, slices;

  __device__ __forceinline__ std::int64_t at(int head, int slice, int step) const {
    return (static_cast<std::int64_t>(head) * slices + slice) * steps + step;
  }
  __device__ __forceinline__ std::int64_t at(const WalkVisit& visit) const {
    return at(visit.head, visit.slice, visit.step);
  }
  /// The place of a step's first row among numbers that all slices share: [head][step][kWalkTokens].
  __device__ __forceinline__ std::int64_t first_row(const WalkVisit& visit) const {
    return (static_cast<std::int64_t>(visit.head) * steps + visit.step) * kWalkTokens;
  }
};

/// What the walk for the gradient of q leaves for the walk back; null where it is known: scales are 0 without input
/// gates and initial scales, and rows without a divisor are multiplied by 2^m.
struct RowParts {
  double* scale;   ///< of the state before a step, in powers of two: [head][slice][step]
  float* result;   ///< 1 / what a row is divided by: [head][step][kWalkTokens]
  float* divisor;  ///< the gradient of its sum of weights, times what it is divided by
  /// Whether rows are found before, since no walk of one slice of several has sums over all dims: a walk for o finds
  /// them, and leaves as `divisor` minus the sign of the sum, or 0 where the row is divided by its bound.
  bool given;
};

struct WalkArguments {
  WalkMaps maps;
  const WalkVisit* visits;
  const int* begins;  ///< [block + 1], among the visits
  GateTensor log_forget, log_input;
  bool scaled;                    ///< states have scales: there are input gates, or initial states with scales
  int inner_group, column_group;  ///< how many heads share one of x and y, and of z
  int inner_slices;               ///< each of which stores a head of out
  bool once;                      ///< nobody else reads the same rows of x and y
  float scale;
  int inner_dim, column_dim;
  WalkStates initial, final;  ///< the caller's: by root, and by node
  WalkScales initial_scale, final_scale;
  float4* slots;        ///< of states: [block][slot][number / 4][thread]
  float* slot_vectors;  ///< [block][slot][inner]
  double* slot_scales;  ///< [block][slot][lane]
  int slots_per_block;
  GateParts parts;
  RowParts rows;
};

/// The arguments of the walk from last to first. With g the gradient of out, it computes
///
///     ∂k(j) = Σ_i D(i, j) scale (g(i) · v(j)) q(i)     ∂v(j) = Σ_i D(i, j) scale (q(i) · k(j)) g(i)
///
/// and where o is divided, ∂k adds to g(i) · v(j) the gradient of the row's sum of weights. A visit's `from` is where
/// the gradient of the state behind it comes from, and `keep` where that of the state before it goes; kAdds: it is
/// added to what is there.
struct ReverseArguments {
  CUtensorMap q, k, v, g, dk_rows, dk_row, dv_rows, dv_row;
  const WalkVisit* visits;
  const int* begins;
  GateTensor log_forget, log_input;
  bool scaled;
  int group;  ///< how many heads share one of q and k
  float scale;
  int key_dim, value_dim, key_slices, value_slices;
  WalkStates grad_final, grad_initial;  ///< the caller's: by node, and by root
  float4* slots;                        ///< [block][slot][number / 4][thread]
  float* slot_vectors;                  ///< [block][slot][thread]
  int slots_per_block;
  GateParts parts;
  RowParts rows;
};

}  // namespace flashmask::cuda::sm90
