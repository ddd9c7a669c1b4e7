#pragma once

#include "cuda/sm90/bit_builder.cuh"
#include "cuda/sm90/forward_consumer.cuh"
#include "cuda/sm90/forward_producers.cuh"

/// The forward on Hopper: four warps feed the others (one copies Q, K and V into shared memory, one takes row tiles
/// from a counter, two turn the intervals of partial tiles into bits), and warpgroups of 64 rows each compute.
namespace flashmask::cuda::sm90 {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ ForwardArguments arguments) {
  extern __shared__ std::uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedMemory<Shape>*>(memory);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&q);
    prefetch_tensor_map(&k);
    prefetch_tensor_map(&v);
    init_barriers(shared);
  }
  __syncthreads();
  if (warp < 4) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == 0) {
      Producer<Shape>(shared, arguments, &q, &k, &v).run();
    } else if (warp == 1) {
      Scheduler<Shape>(shared, arguments).run(arguments.batch * arguments.query_heads * arguments.map.row_tiles);
    } else {
      BitBuilder<Shape>(shared, arguments, warp - 2).run();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    Consumer<Shape>(shared, arguments).run();
  }
}

}  // namespace flashmask::cuda::sm90
