// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/forward/forward_consumer.cuh"
#include "cuda/sm90/rows/row_kernel.cuh"

namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o,
                   const __grid_constant__ CUtensorMap o_row, const __grid_constant__ ForwardArguments arguments) {
  run_roles<ForwardConsumer<Shape>, Shape>(arguments, {&q, &k, &v, nullptr, &o, &o_row, nullptr});
}

/// The kernel of shapes that copy a bias.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    biased_forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                          const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o,
                          const __grid_constant__ CUtensorMap o_row, const __grid_constant__ ForwardArguments arguments,
                          const __grid_constant__ BiasMap bias) {
  run_roles<ForwardConsumer<Shape>, Shape>(arguments, {&q, &k, &v, nullptr, &o, &o_row, &bias});
}

}  // namespace flashmask::cuda::sm90
