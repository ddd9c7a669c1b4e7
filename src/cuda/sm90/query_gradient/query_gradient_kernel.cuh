// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/query_gradient/query_gradient_consumer.cuh"
#include "cuda/sm90/rows/row_kernel.cuh"

/// The second pass of a deterministic backward: gradients of q alone, one row tile at a time, each in one order of
/// additions.
namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    query_gradient_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                          const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap grad_o,
                          const __grid_constant__ QueryGradientArguments arguments) {
  run_roles<QueryGradientConsumer<Shape>, Shape>(arguments, {&q, &k, &v, &grad_o, nullptr, nullptr, nullptr});
}

}  // namespace flashmask::cuda::sm90
