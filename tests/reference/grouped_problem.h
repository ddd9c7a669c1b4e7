// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/reference.h"

/// A problem small enough for finite differences: two batch entries, four heads over two, three keys and five rows, of
/// which the first two see nothing.
namespace flashmask::test {

inline Problem grouped_problem() {
  Problem p;
  p.batch = 2;
  p.query_length = 5;
  p.key_length = 3;
  p.query_heads = 4;
  p.kv_heads = 2;
  p.head_dim = 3;
  p.value_dim = 2;
  return p;
}

inline Mask grouped_mask() {
  return from_predicate({1, 1, 5, 3}, [](auto, auto, auto row, auto column) { return column <= row - 2; });
}

/// Σ o · grad_o + Σ lse · grad_lse, whose gradients backward() computes.
inline double weighted_sum(const reference::Outputs& out, const std::vector<double>& grad_o,
                           const std::vector<double>& grad_lse) {
  double sum = 0;
  for (std::size_t i = 0; i < out.o.size(); ++i) sum += out.o[i] * grad_o[i];
  for (std::size_t i = 0; i < out.lse.size(); ++i) sum += out.lse[i] * grad_lse[i];
  return sum;
}

}  // namespace flashmask::test
