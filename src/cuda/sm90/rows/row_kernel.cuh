// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/rows/bias_producer.cuh"
#include "cuda/sm90/rows/bit_builder.cuh"
#include "cuda/sm90/rows/row_producers.cuh"

namespace flashmask::cuda::sm90 {

/// Runs the body of a kernel over row tiles. Four warps feed the others: one copies tiles into shared memory, one takes
/// row tiles from a counter, and one or two make the mask bits of partial tiles; where it is one, the last may copy a
/// bias. Warpgroups of 64 rows each compute.
template <class Consumer, class Shape, class Arguments>
__device__ __forceinline__ void run_roles(const Arguments& arguments, const RowTensors& tensors) {
  auto& shared = begin_sharing<RowMemory<Shape>>({tensors.q, tensors.k, tensors.v, tensors.grad_o});
  const int warp = threadIdx.x / 32;
  if (warp < 4) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == 0) {
      Producer<Shape>(shared, arguments, tensors).run();
    } else if (warp == 1) {
      Scheduler<Shape>(shared, arguments, tensors).run();
    } else if (warp < 2 + Shape::kBuilderWarps) {
      BitBuilder<Shape>(shared, arguments, warp - 2).run();
    } else if constexpr (CopiesBias<Shape>) {
      BiasProducer<Shape>(shared, arguments, tensors.bias).run();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    Consumer(shared, arguments, tensors).run();
  }
}

}  // namespace flashmask::cuda::sm90
