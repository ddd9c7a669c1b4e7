// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
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
};

struct Outputs {
  std::vector<double> o, lse;
};

struct Gradients {
  std::vector<double> q, k, v;
  std::vector<double> sinks;  ///< as many as were given
};

FLASHMASK_API Outputs forward(const Problem& problem, const Mask& mask, const Inputs& inputs);

/// `grad_lse` may be empty.
FLASHMASK_API Gradients backward(const Problem& problem, const Mask& mask, const Inputs& inputs,
                                 std::span<const double> grad_o, std::span<const double> grad_lse);

/// The result of one query row: probabilities over the columns (0 where masked), output and lse.
struct Row {
  std::vector<double> p, o;
  std::vector<double> slopes;  ///< over the columns: the derivative of a changed score by the score; 1 without a cap
  double lse = 0;
};
FLASHMASK_API Row row(const Problem& problem, const Mask& mask, const Inputs& inputs, std::int64_t batch,
                      std::int64_t head, std::int64_t query);

/// Returns dL/dscore of one query row (before the cap and the scale), over the columns: P ∘ (dP − Δ + dlse) ∘ slopes.
FLASHMASK_API std::vector<double> grad_scores(const Problem& problem, const Inputs& inputs, const Row& row,
                                              std::int64_t batch, std::int64_t head, std::int64_t query,
                                              std::span<const double> grad_o, std::span<const double> grad_lse);

}  // namespace flashmask::reference
