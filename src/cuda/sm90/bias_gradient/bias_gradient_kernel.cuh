// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/bias_gradient/bias_gradient_consumer.cuh"
#include "cuda/sm90/bias_gradient/bias_gradient_producer.cuh"

namespace flashmask::cuda::sm90 {

/// Sums the gradient of a bias of each score. A block takes tiles of 128 × 128 values, one after the other, so that the
/// next tile's copies run while the last one is stored; each tile it takes through the scores of all heads that share
/// it, or of a part of them. One warp copies, and two warpgroups of 64 rows each compute. No atomics: the same bits on
/// every run. items: parts of tiles.
template <class T>
__global__ void __launch_bounds__(BiasGradientMemory::kThreads, 1)
    sum_bias_gradient_kernel(const __grid_constant__ BiasGradientMaps maps,
                             const __grid_constant__ BiasGradientArguments arguments, int items) {
  auto& shared =
      begin_sharing<BiasGradientMemory>({&maps.q, &maps.k, &maps.v, &maps.grad_o, &maps.bias.map, &maps.gradient.map});
  if (threadIdx.x < 128) {
    give_registers<24>();
    if (threadIdx.x < 32) BiasGradientProducer(shared, arguments, maps).run(items);
  } else {
    take_registers<240>();
    BiasGradientConsumer<T>(shared, arguments, maps).run();
  }
}

/// The shared memory of a block that joins the parts of a tile.
struct JoiningMemory {
  alignas(1024) BiasGradientMemory::Tile tile;
};

/// Adds up the parts of a tile, in their order.
template <class T>
__global__ void __launch_bounds__(BiasGradientMemory::kConsumers)
    join_bias_gradient_kernel(const __grid_constant__ BiasMap to,
                              const __grid_constant__ BiasGradientArguments arguments) {
  const int tile = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float sums[BiasGradientMemory::kTile / 2] = {};
#pragma unroll 1
  for (int part = 0; part < arguments.parts; ++part) {
    const float* const from = part_of(arguments, std::int64_t{tile} * arguments.parts + part, thread);
#pragma unroll
    for (int i = 0; i < BiasGradientMemory::kTile / 2; ++i) sums[i] += from[i * BiasGradientMemory::kConsumers];
  }
  const BiasGradientArguments::Place place = arguments.place(tile, 0);
  store_sums<T>(sums, shared_memory<JoiningMemory>().tile, thread / 128, to, place.first_batch, place.first_head,
                place.row_tile, place.column_tile);
  if (thread % 32 == 0) await_stores_read();
}

}  // namespace flashmask::cuda::sm90
