// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "flashmask/dropout.h"
#include "flashmask/problem.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"

namespace flashmask::cli {

/// The largest errors over the sampled rows and columns.
struct SampledErrors {
  std::int64_t rows = 0, columns = 0;
  check::Comparison o, lse, grad_q, grad_k, grad_v;

  double largest_error() const;  ///< of all five
  double largest_ratio() const;  ///< error ÷ bound
  bool passes() const { return largest_ratio() <= 1; }
};

/// Whether a query row sees a key column.
using VisibleScore =
    std::function<bool(std::int64_t batch, std::int64_t query_head, std::int64_t row, std::int64_t column)>;

/// Compares results, forward and backward, with flashmask::reference at random rows (o, lse, dq) and columns (dk, dv).
/// The reference gets its mask score by score, so that it shares no form with the kernels. A column costs as much as
/// the rows that see it; columns that too many rows see are skipped. `dropout` must be that of the runs.
SampledErrors check_samples(const VisibleScore& visible, const Problem& problem, const DropoutState& dropout,
                            const check::AttentionTensors& results, std::uint64_t seed);

}  // namespace flashmask::cli
