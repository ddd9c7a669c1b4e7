// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/attention.h"
#include "flashmask/problem.h"

namespace flashmask::cuda {

/// ALiBi as kernels are given it: scores lose slope · |position of row − position of column|.
struct AlibiArguments {
  const float* slopes;                           // of the query heads; null: no ALiBi
  const float *query_positions, *key_positions;  // null: row i has position i + row_shift, column j has j
  std::int64_t slopes_batch;                     // elements between batch entries; 0: they share one
  std::int64_t query_positions_batch, key_positions_batch;
  int query_length, key_length, row_shift;
  float to_products;  // what a slope is multiplied by where scores are not yet multiplied by their scale
};

/// `scale`: what turns numbers into scores where ALiBi is added to them.
inline AlibiArguments alibi_arguments(const Problem& problem, const AlibiTensors& alibi, float scale) {
  if (problem.change.bias() != ScoreBias::alibi) return {};
  const auto numbers = [](const TensorView& tensor) { return static_cast<const float*>(tensor.data); };
  const auto between = [](const TensorView& tensor) { return tensor.shape[0] == 1 ? 0 : tensor.strides[0]; };
  return {.slopes = numbers(alibi.slopes),
          .query_positions = numbers(alibi.query_positions),
          .key_positions = numbers(alibi.key_positions),
          .slopes_batch = alibi.slopes.rank == 1 ? 0 : between(alibi.slopes),
          .query_positions_batch = between(alibi.query_positions),
          .key_positions_batch = between(alibi.key_positions),
          .query_length = static_cast<int>(problem.query_length),
          .key_length = static_cast<int>(problem.key_length),
          .row_shift = static_cast<int>(problem.key_length - problem.query_length),
          .to_products = 1 / scale};
}

}  // namespace flashmask::cuda
