// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/sm90/walk/walk_arguments.h"

namespace flashmask::cuda::sm90 {

/// Widest keys and values that walks take.
inline constexpr std::int64_t kMostWalkKeys = 256, kMostWalkValues = 512;

/// Columns of a slice of values.
inline int slice_columns(const LinearProblem& problem) {
  return problem.value_dim <= 64 && problem.key_dim <= 128 ? 64 : 128;
}
inline int slices(std::int64_t dim, int width) { return static_cast<int>((dim + width - 1) / width); }
/// Into how many slices values are cut in a forward.
inline int slices_of(const LinearProblem& problem) { return slices(problem.value_dim, slice_columns(problem)); }
/// Into how many slices keys and values are cut in walks for gradients.
inline int key_slices(const LinearProblem& problem) { return slices(problem.key_dim, kReverseDim); }
inline int value_slices(const LinearProblem& problem) { return slices(problem.value_dim, kReverseDim); }

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
