// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/linear_slices.h"
#include "cuda/sm90/walk/walk_arguments.h"

namespace flashmask::cuda::sm90 {

/// Columns of a slice of values.
inline int slice_columns(const LinearProblem& problem) {
  return problem.value_dim <= 64 && problem.key_dim <= 128 ? 64 : 128;
}
/// Into how many slices values are cut in a forward.
inline int slices_of(const LinearProblem& problem) { return slices(problem.value_dim, slice_columns(problem)); }

/// A plan's tables, in memory of the device; walk_visits.h says what they hold.
struct VisitTable {
  const WalkVisit* visits;
  const int* begins;
  int blocks, slots;
};
struct WalkTables {
  VisitTable forward, rows, queries, reverse;
  const WalkVisit* steps;
  int step_count;
  const std::int64_t* padding;
  std::int64_t paddings;  ///< how many tokens
};

}  // namespace flashmask::cuda::sm90
