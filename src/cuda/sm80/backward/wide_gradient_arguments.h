// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/sections.h"
#include "cuda/common/views.h"
#include "cuda/views/scores.h"
#include "cuda/views/tensors.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm80 {

/// The gradient that a launch sums. For those of keys and values, keys are the outer side of tiles and scores are
/// transposed.
enum class GradientOf { queries, keys, values };

struct WideGradientArguments {
  TensorRows q, k, v, grad_o;
  OutputRows gradient;
  bool float32_gradient;  // whether it is float32, whatever the dtype of the others
  float factor;           // scales the sums
  BackwardStatistics statistics;
  int query_heads, outer_heads;  // per batch entry
  int outer_length, outer_dims;  // the gradient's rows and dims
  int head_ratio;                // query heads that share a key head
  ScoreArguments score;
  Sections outer;   // outer tiles of all heads
  TileMapView map;  // by rows or by columns, whichever is the outer side
  MaskView mask;
};

/// Makes the arguments of a launch. side_by_side: heads per section.
inline WideGradientArguments wide_gradient_arguments(GradientOf of, const Problem& problem,
                                                     const BackwardTensors& tensors, const BackwardStatistics& rows,
                                                     const TileMapView& map, const MaskView& mask, int side_by_side,
                                                     const ScoreArguments& score) {
  const bool queries = of == GradientOf::queries;
  const TensorView& gradient = queries ? tensors.grad_q : of == GradientOf::keys ? tensors.grad_k : tensors.grad_v;
  const int outer_heads = static_cast<int>(queries ? problem.query_heads : problem.kv_heads);
  return {.q = tensor_rows(tensors.q),
          .k = tensor_rows(tensors.k),
          .v = tensor_rows(tensors.v),
          .grad_o = tensor_rows(tensors.grad_o),
          .gradient = output_rows(gradient),
          .float32_gradient = gradient.dtype == DType::f32,
          .factor = of == GradientOf::values ? score.dropout.scale : score.scale,
          .statistics = rows,
          .query_heads = static_cast<int>(problem.query_heads),
          .outer_heads = outer_heads,
          .outer_length = static_cast<int>(queries ? problem.query_length : problem.key_length),
          .outer_dims = static_cast<int>(of == GradientOf::values ? problem.value_dim : problem.head_dim),
          .head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads),
          .score = score,
          .outer = {static_cast<int>(problem.batch) * outer_heads, side_by_side, map.outer_tiles},
          .map = map,
          .mask = mask};
}

}  // namespace flashmask::cuda::sm80
