// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/reverse_gradient.cuh"
#include "cuda/sm90/walk/reverse_producer.cuh"
#include "cuda/sm90/walk/reverse_state.cuh"
#include "cuda/sm90/walk/walk_kernel.cuh"

namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    reverse_kernel(const __grid_constant__ ReverseArguments arguments) {
  const ReverseArguments& a = arguments;
  auto& shared = begin_sharing<ReverseMemory<Shape>>({&a.q, &a.k, &a.v, &a.g, &a.dk_rows, &a.dv_rows});
  const int begin = a.begins[blockIdx.x], end = a.begins[blockIdx.x + 1];
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    set_registers<Shape::kProducerRegisters, Shape::kThreads>();
    produce(shared, arguments, begin, end);
  } else if (group == 1) {
    set_registers<Shape::kKeyRegisters, Shape::kThreads>();
    ReverseGradient<Shape, true>(shared, arguments).run(end - begin);
  } else if (group == 2) {
    set_registers<Shape::kValueRegisters, Shape::kThreads>();
    ReverseGradient<Shape, false>(shared, arguments).run(end - begin);
  } else {
    set_registers<Shape::kStateRegisters, Shape::kThreads>();
    if (begin < end) ReverseState<Shape>(shared, arguments).run();
  }
}

}  // namespace flashmask::cuda::sm90
