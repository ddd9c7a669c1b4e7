// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/reference.h"

/// The computation of flashmask::reference as a framework without fused attention does it in the problem's dtype:
/// sums in float32, and every tensor between two steps rounded to the dtype. What it loses against the reference is
/// what a kernel may lose.
namespace flashmask::check::naive {

struct Row {
  std::vector<std::int64_t> columns;  ///< that the row sees
  std::vector<float> p;               ///< over `columns`
  std::vector<float> grad_scores;     ///< over `columns`
  std::vector<float> o;
  float sink = 0;  ///< the probability that it takes
  float grad_sink = 0;
  float grad_sink_variance = 0;  ///< that the rounding of o gives grad_sink, at most
};

/// One query row, forward and the gradient of its scores. The arguments are those of reference::row and grad_scores.
Row row(const Problem& problem, const Mask& mask, const reference::Inputs& inputs, std::int64_t batch,
        std::int64_t head, std::int64_t query, std::span<const double> grad_o, std::span<const double> grad_lse);

struct Results {
  std::vector<double> o, grad_q, grad_k, grad_v, grad_sinks;
  /// What rounding o may do to grad_sinks: sums over all rows of a head, of which a call has too few for their largest
  /// error to say much.
  std::vector<double> grad_sinks_rounding;
};

/// All rows.
Results attend(const Problem& problem, const Mask& mask, const reference::Inputs& inputs,
               std::span<const double> grad_o, std::span<const double> grad_lse);

}  // namespace flashmask::check::naive
