// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/linear_attention.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"

/// Dense attention in double precision: the specification that every kernel is checked against. Tensors are contiguous
/// in the layout of Problem; its dtype, device and dropout are ignored.
namespace flashmask::reference {

struct Inputs {
  std::span<const double> q, k, v;
  /// [batch, query_heads, query_length, key_length]: the factor that dropout gives each probability, 0 or the scale of
  /// kept ones; empty: no dropout.
  std::span<const double> dropout = {};
  /// [query_heads], or [batch, query_heads, query_length]: logits that take probability and have no value; empty: none.
  std::span<const double> sinks = {};
  /// For a problem with ScoreBias::alibi: [query_heads] or [batch, query_heads].
  std::span<const double> alibi_slopes = {};
  /// [query_length] or [batch, query_length], and the same of keys; empty: as AlibiTensors says.
  std::span<const double> query_positions = {}, key_positions = {};
  /// For a problem with ScoreBias::tensor or ::distances: BiasTensor's values, contiguous, with their shape and origin.
  std::span<const double> bias = {};
  std::array<std::int64_t, 4> bias_shape = {};
  std::int64_t bias_origin = 0;
  std::span<const ScoreOperand> operands = {};  ///< of the function of a problem's change
};

struct Outputs {
  std::vector<double> o, lse;
  std::vector<double> max_scores;  ///< as ForwardTensors says
};

struct Gradients {
  std::vector<double> q, k, v;
  std::vector<double> sinks;  ///< as many as were given
  std::vector<double> bias;   ///< the same
};

FLASHMASK_API Outputs forward(const Problem& problem, const Mask& mask, const Inputs& inputs);

/// `grad_lse` may be empty.
FLASHMASK_API Gradients backward(const Problem& problem, const Mask& mask, const Inputs& inputs,
                                 std::span<const double> grad_o, std::span<const double> grad_lse);

struct Tangents {
  std::vector<double> o, lse;
};

/// Computes the tangents of o and lse, given those of q, k and v, each of which may be empty: zeros. Sinks and biases
/// have none.
FLASHMASK_API Tangents forward_tangents(const Problem& problem, const Mask& mask, const Inputs& inputs,
                                        std::span<const double> tangent_q, std::span<const double> tangent_k,
                                        std::span<const double> tangent_v);

/// The result of one query row: probabilities over the columns (0 where masked), output and lse.
struct Row {
  std::vector<double> p, o;
  std::vector<double> slopes;       ///< over the columns: the derivative of a changed score by the score
  std::vector<double> bias_slopes;  ///< the same by what a bias adds
  double lse = 0;
  double max_score = 0;  ///< the largest score that the row sees; −infinity where it sees nothing
};
FLASHMASK_API Row row(const Problem& problem, const Mask& mask, const Inputs& inputs, std::int64_t batch,
                      std::int64_t head, std::int64_t query);

/// Returns dL/dscore of one query row (behind the scale and the factor that the change begins with), over the columns:
/// P ∘ (dP − Δ + dlse) ∘ slopes.
FLASHMASK_API std::vector<double> grad_scores(const Problem& problem, const Inputs& inputs, const Row& row,
                                              std::int64_t batch, std::int64_t head, std::int64_t query,
                                              std::span<const double> grad_o, std::span<const double> grad_lse);

/// Linear attention as a recurrence along the predecessors of each token; tensors are contiguous in the layout of
/// LinearProblem, whose dtype and device are ignored. Memory grows with length × key_dim × value_dim.
struct LinearInputs {
  std::span<const double> q, k, v;
  std::span<const double> log_forget = {}, log_input = {};  ///< empty: 0
  /// One per root, that is per node without a parent; empty: zero. e^log_scale state stands for Σ W k vᵀ, (heads,
  /// key_dim, value_dim), and e^log_scale normalizer, present where the problem normalizes, for Σ W k.
  std::span<const double> state = {}, normalizer = {}, log_scale = {};
};

struct LinearOutputs {
  std::vector<double> o;
  std::vector<double> state, normalizer, log_scale;  ///< one per node
};

struct LinearGradients {
  std::vector<double> q, k, v, log_forget, log_input;
  std::vector<double> state, normalizer;  ///< of initial states, one per root, given or not
};

FLASHMASK_API LinearOutputs linear_forward(const LinearProblem& problem, const Mask& mask, const LinearInputs& inputs);

/// The gradients of the final states may be empty.
FLASHMASK_API LinearGradients linear_backward(const LinearProblem& problem, const Mask& mask,
                                              const LinearInputs& inputs, std::span<const double> grad_o,
                                              std::span<const double> grad_state = {},
                                              std::span<const double> grad_normalizer = {});

}  // namespace flashmask::reference
