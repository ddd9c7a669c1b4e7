// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/linear_arguments.h"
#include "cuda/views/tensors.h"

/// The arguments of the kernels of linear attention: plain pointers and sizes. Arrays of one number per token have
/// [head][step][kWalkTokens], where a step's last tokens may be missing.
namespace flashmask::cuda::sm80 {

/// Tokens of a step, and steps of a stretch.
inline constexpr int kWalkTokens = 64, kWalkSteps = 16;
inline constexpr int kWalkThreads = 128;

/// Up to kWalkSteps steps of one node, which one block walks.
struct WalkStretch {
  int batch, row;  ///< its first token
  int tokens;
  int first_step;  ///< number among the steps of the plan
  int parent;      ///< the stretch before it; -1: it begins a tree
  int root;        ///< the number of its tree's root among the roots
  int node;        ///< the node that ends with it; -1: the next stretch is of the same node
  int slot;        ///< the place of its state in arrays of states; -1: it is alone in its tree and has none
  bool has_successor;
  bool gives_first;  ///< it is the last stretch behind its parent, and so the first to give that a gradient

  __host__ __device__ __forceinline__ int steps() const { return (tokens + kWalkTokens - 1) / kWalkTokens; }
};

/// The stretches of one tree: [begin, end).
struct WalkTree {
  int begin, end;
};

struct WalkPlanView {
  const WalkStretch* stretches;  ///< a parent comes before its successors
  const int* order;              ///< of the walks: linked stretches first, then the longest first
  const int* stretch_of_step;
  const WalkTree* trees;  ///< those of several stretches first
  int steps, heads;
  bool every_state;  ///< each stretch has a state, whose place is its number

  /// Returns the place of the state of a stretch.
  __device__ __forceinline__ int slot(int stretch) const { return every_state ? stretch : stretches[stretch].slot; }
};

/// Sums of gates, which begin anew in each step: three doubles per token, in powers of two. The first is the sum of
/// log_forget up to the token, the second that sum less the token's log_input, the third the largest of the negated
/// second numbers so far.
struct WalkGates {
  double* tokens;  ///< [head][step][3][kWalkTokens]

  __device__ __forceinline__ double* of(int head, int steps, int step) const {
    return tokens + (static_cast<std::int64_t>(head) * steps + step) * (3 * kWalkTokens);
  }
};

/// How states pass from stretch to stretch: [stretch][head].
struct WalkLinks {
  double* decay;         ///< sum of log_forget over the stretch
  double* own_scale;     ///< of what the stretch adds
  double* scale_behind;  ///< of the state behind it
  float* gain;           ///< the weight of the state before it in that behind it
  float* own_gain;       ///< the weight of what it adds
};

/// What a walk computes: with x, y and z, out(i) = Σ_j D(i, j) (x(i) · y(j)) z(j).
enum class WalkRole {
  output,          ///< (q, k, v)
  query_gradient,  ///< (∂o, v, k)
  key_gradient,    ///< (v, ∂o, q), from last to first
  value_gradient   ///< (k, q, ∂o), from last to first
};

__host__ __device__ __forceinline__ bool is_forward(WalkRole role) {
  return role == WalkRole::output || role == WalkRole::query_gradient;
}

/// Beside a state there is a vector where o is divided: as if z (of the output) or the summed side (of gradients) had
/// one more column.
enum class WalkVector { none, inner, columns };

/// A tensor of q's or v's kind, and how many heads share one of its heads.
struct WalkTensor {
  TensorRows rows;
  int group;

  __device__ __forceinline__ Rows of(int batch, int head) const { return rows.of(batch, head / group); }
};

/// Factors of every token, as the gradients need them: 1 over the divisor, and the gradient of the sum of weights.
struct WalkDivisors {
  float* factor;    ///< null: none, o is not divided, or a walk for o finds its own
  float* gradient;  ///< null: another slice of values has it
};

struct WalkArguments {
  WalkPlanView plan;
  WalkGates gates;
  const double* scale_behind;  ///< of WalkLinks; null where no stretch has a parent
  WalkScales initial_scale;
  WalkDivisors divisors;
  WalkRole role;
  WalkVector vector;
  float scale;
  int inner_dim, column_dim;  ///< of x and y, and of z
  WalkTensor x, y, z;
  /// q or k, in the layout of z: its products with what the state adds to rows of `out` go to `dots`. No data: none.
  WalkTensor counterpart;
  WalkStates linked;    ///< the states that walks begin with, by place
  WalkStates given;     ///< the caller's initial states, by root: for stretches without a parent
  bool linked_are_own;  ///< a walk begins with what lies at its own stretch's place; else at its parent's
  bool all_have_own;    ///< with linked_are_own: stretches without a successor have something there, too
  std::uint16_t* out;
  std::int64_t out_batch, out_row, out_head;
  bool only_divisors;  ///< find what o is divided by, and nothing else
  /// With only_divisors: `factor` has the sums of weights of earlier slices of keys; it is to get sums again.
  bool adds_sums, leaves_sums;
  float* dots;           ///< [head][step][kWalkTokens]
  uint4* states;         ///< states before each step: written by the walk of queries, read by that of keys
  float* state_vectors;  ///< their vectors
  float* across;         ///< [head][step]: products of the states before steps with their gradients
};

}  // namespace flashmask::cuda::sm80
