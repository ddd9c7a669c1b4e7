// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/fused/fused_builder.cuh"
#include "cuda/sm90/fused/fused_consumer.cuh"
#include "cuda/sm90/fused/fused_producer.cuh"

/// Both passes of a backward in one launch, in tiles of 64 × 64. A block takes a segment of a key head. At each of its
/// positions it sums first over the tiles of the row tile there, for the gradient of q, then over the tiles of the key
/// tile, for the gradients of k and v. Where rows are short, both visit nearly the same tiles, which are then copied
/// once. A sum stays in registers until it is complete, and its terms have one order. One warp copies, one reads masks,
/// and a warpgroup computes; two blocks share a multiprocessor.
namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    fused_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap grad_o,
                 const __grid_constant__ CUtensorMap grad_q, const __grid_constant__ CUtensorMap grad_k,
                 const __grid_constant__ CUtensorMap grad_v, const __grid_constant__ FusedArguments arguments) {
  if (!arguments.choice.has_the_work()) return;
  auto& shared = begin_sharing<FusedMemory<Shape>>({&q, &k, &v, &grad_o});
  if (threadIdx.x < 128) {
    give_registers<Shape::kProducerRegisters>();
    const int warp = __shfl_sync(~0U, threadIdx.x / 32, 0);  // broadcast, so the compiler knows it to be uniform
    if (warp == 0) {
      FusedProducer<Shape>(shared, arguments, &q, &k, &v, &grad_o).run();
    } else if (warp == 1) {
      FusedBuilder<Shape>(shared, arguments).run();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    FusedConsumer<Shape>(shared, arguments, &grad_q, &grad_k, &grad_v).run();
  }
}

}  // namespace flashmask::cuda::sm90
