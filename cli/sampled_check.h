#pragma once

#include <cstdint>

#include "check/error_bound.h"
#include "check/host_tensor.h"
#include "flashmask/problem.h"
#include "workload.h"

namespace flashmask::cli {

/// The largest errors over the rows and columns that were looked at.
struct SampledErrors {
  std::int64_t rows = 0, columns = 0;
  check::Comparison o, lse, grad_q, grad_k, grad_v;

  double largest_error() const;  ///< of all five
  double largest_ratio() const;  ///< error ÷ bound
  bool passes() const { return largest_ratio() <= 1; }
};

/// Compares results, forward and backward, with flashmask::reference at random rows (o, lse, dq) and columns (dk, dv).
/// The mask that the reference sees is built anew, sequence by sequence. A column costs as much as the rows that see
/// it: columns that too many see are passed over.
SampledErrors check_samples(const Workload& workload, const Problem& problem, const check::AttentionTensors& results,
                            std::uint64_t seed);

}  // namespace flashmask::cli
