// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/scores.h"

/// Scores that lose slope · |distance| (Press et al. 2022, attention with linear biases).
namespace flashmask::cuda {

/// Calls body(unit, eight, i, penalty) for each score of the lane with what ALiBi takes from it, in units of products.
/// Place: PlaceByRows or TransposedPlace (tile_scores.cuh).
template <int kUnits, int kEights, class Place, class Body>
__device__ __forceinline__ void for_each_penalty(const AlibiArguments& alibi, const Place& place, const Body& body) {
  const float slope = __ldg(alibi.slopes + place.batch * alibi.slopes_batch + place.head) * alibi.to_products;
  const int row = place.row(lane_index()), column = place.column(lane_index());
  if (alibi.query_positions == nullptr) {
    const auto nearest = static_cast<float>(row + alibi.row_shift - column);
    for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
      const auto further = static_cast<float>(Place::rows_to(unit, eight, i) - Place::columns_to(unit, eight, i));
      body(unit, eight, i, slope * fabsf(nearest + further));
    });
    return;
  }
  const float* const rows = alibi.query_positions + place.batch * alibi.query_positions_batch;
  const float* const columns = alibi.key_positions + place.batch * alibi.key_positions_batch;
  // Places past the end take the last token's position: nothing is visible there.
  for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
    const float of_row = __ldg(rows + min(row + Place::rows_to(unit, eight, i), alibi.query_length - 1));
    const float of_column = __ldg(columns + min(column + Place::columns_to(unit, eight, i), alibi.key_length - 1));
    body(unit, eight, i, slope * fabsf(of_row - of_column));
  });
}

}  // namespace flashmask::cuda
