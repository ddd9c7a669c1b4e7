// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/reference.h"

/// The computation of flashmask::reference as a framework without fused attention does it in the problem's dtype: sums
/// in float32, and every tensor between two steps rounded to the dtype. Its error against the reference sets the error
/// that a kernel may have.
namespace flashmask::check::naive {

struct Row {
  std::vector<std::int64_t> columns;  ///< columns that the row sees
  std::vector<float> p;               ///< over `columns`
  std::vector<float> slopes;          ///< over `columns`: the derivative of a changed score by the score
  std::vector<float> bias_slopes;     ///< over `columns`: the same by what a bias adds
  std::vector<float> grad_scores;     ///< over `columns`
  std::vector<float> grad_biased;     ///< over `columns`: by what a bias adds
  std::vector<float> o;
  float sink = 0;  ///< the probability that the sink takes
  float grad_sink = 0;
  float grad_sink_variance = 0;  ///< bound on the variance of grad_sink from rounding o
};

/// Computes one query row and the gradient of its scores. The arguments are those of reference::row and grad_scores.
Row row(const Problem& problem, const Mask& mask, const reference::Inputs& inputs, std::int64_t batch,
        std::int64_t head, std::int64_t query, std::span<const double> grad_o, std::span<const double> grad_lse);

struct Results {
  std::vector<double> o, grad_q, grad_k, grad_v, grad_sinks, grad_bias;
  /// The error that rounding o may cause in grad_sinks. These are sums over all rows of a head, and a call has too few
  /// of them for the largest error among them to say much.
  std::vector<double> grad_sinks_rounding;
};

/// Computes all rows.
Results attend(const Problem& problem, const Mask& mask, const reference::Inputs& inputs,
               std::span<const double> grad_o, std::span<const double> grad_lse);

}  // namespace flashmask::check::naive
