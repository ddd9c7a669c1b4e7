// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/sm80/backward/query_sums.cuh"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda::sm80 {

struct ClosingArguments {
  const float* query_sums;
  OutputRows grad_q;
  int query_length, query_heads, head_dim;
  int parts;  // parts of kPartRows rows per head, in the workspace
  float scale;
  TileChoice choice;  // the choice of the launch that made the sums
};

/// Scales the sums of one part of the rows and stores them as the gradient of q; each block takes one part.
template <class Shape>
__device__ __forceinline__ void close_rows(const ClosingArguments& arguments, int part) {
  using T = typename Shape::Element;
  using Sums = QuerySums<Shape>;
  const int head = part / arguments.parts, first = part % arguments.parts * Shape::kPartRows;
  if (first >= arguments.query_length) return;
  T* const out = arguments.grad_q.of<T>(head / arguments.query_heads, head % arguments.query_heads);
#pragma unroll
  for (int unit = 0; unit < Sums::kUnits; ++unit) {
    float d[4 * Sums::kEights];
#pragma unroll
    for (int eight = 0; eight < Sums::kEights; ++eight) {
      const float4 four =
          __ldcs(reinterpret_cast<const float4*>(arguments.query_sums + Sums::place(part, unit, eight)));
      d[4 * eight] = four.x;
      d[4 * eight + 1] = four.y;
      d[4 * eight + 2] = four.z;
      d[4 * eight + 3] = four.w;
    }
    store_rows(d, {arguments.scale, arguments.scale}, out + Sums::first_dim(), arguments.grad_q.row,
               first + Sums::first_row() + 16 * unit + lane_index() / 4, arguments.query_length,
               arguments.head_dim - Sums::first_dim());
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    close_rows_kernel(const __grid_constant__ ClosingArguments arguments) {
  if (!arguments.choice.has_the_work()) return;
  close_rows<Shape>(arguments, static_cast<int>(blockIdx.x));
}

}  // namespace flashmask::cuda::sm80
