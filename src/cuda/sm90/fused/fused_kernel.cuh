#pragma once

#include "cuda/sm90/fused/fused_builder.cuh"
#include "cuda/sm90/fused/fused_consumer.cuh"
#include "cuda/sm90/fused/fused_producer.cuh"

/// Both passes of a backward in tiles of 64 × 64, woven into one: a block goes along a stretch of a key head, and at
/// each position sums over the tiles of that row tile, then over those of that key tile. Where rows are short these are
/// nearly the same tiles, which then come from memory once; no sum leaves registers before it is complete, and each has
/// one order. One warp copies, one reads masks, a warpgroup computes; two blocks share a multiprocessor.
namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    woven_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap grad_o,
                 const __grid_constant__ CUtensorMap grad_q, const __grid_constant__ CUtensorMap grad_k,
                 const __grid_constant__ CUtensorMap grad_v, const __grid_constant__ WovenArguments arguments) {
  if (!arguments.choice.has_the_work()) return;
  auto& shared = begin_sharing<WovenMemory<Shape>>({&q, &k, &v, &grad_o});
  if (threadIdx.x < 128) {
    give_registers<Shape::kProducerRegisters>();
    const int warp = __shfl_sync(~0U, threadIdx.x / 32, 0);  // uniform, as the compiler sees it
    if (warp == 0) {
      WovenProducer<Shape>(shared, arguments, &q, &k, &v, &grad_o).run();
    } else if (warp == 1) {
      WovenBuilder<Shape>(shared, arguments).run();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    WovenConsumer<Shape>(shared, arguments, &grad_q, &grad_k, &grad_v).run();
  }
}

}  // namespace flashmask::cuda::sm90
