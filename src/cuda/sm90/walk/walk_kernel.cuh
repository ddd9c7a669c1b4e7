// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/walk/walk_output.cuh"
#include "cuda/sm90/walk/walk_producer.cuh"
#include "cuda/sm90/walk/walk_state.cuh"

namespace flashmask::cuda::sm90 {

/// setmaxnreg may not ask for fewer registers than the launch gave by `inc`, or for more by `dec`.
template <int kRegisters, int kThreads>
__device__ __forceinline__ void set_registers() {
  if constexpr (kRegisters < 65536 / kThreads)
    give_registers<kRegisters>();
  else
    take_registers<kRegisters>();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) walk_kernel(const __grid_constant__ WalkArguments arguments) {
  const WalkMaps& maps = arguments.maps;
  auto& shared = begin_sharing<WalkMemory<Shape>>({&maps.x, &maps.y, &maps.z, &maps.out_rows, &maps.out_row});
  const int begin = arguments.begins[blockIdx.x], end = arguments.begins[blockIdx.x + 1];
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    set_registers<Shape::kProducerRegisters, Shape::kThreads>();
    produce(shared, arguments, begin, end);
  } else if (group == 1) {
    set_registers<Shape::kOutputRegisters, Shape::kThreads>();
    WalkOutput<Shape>(shared, arguments).run(end - begin);
  } else {
    set_registers<Shape::kStateRegisters, Shape::kThreads>();
    WalkState<Shape>(shared, arguments, group - 2).run(end - begin);
  }
}

}  // namespace flashmask::cuda::sm90
