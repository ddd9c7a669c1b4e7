// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/sm90/backward/carried_column_consumer.cuh"
#include "cuda/sm90/backward/column_counter.cuh"
#include "cuda/sm90/backward/column_producer.cuh"
#include "cuda/sm90/backward/row_epilogue.cuh"
#include "cuda/sm90/backward/row_prologue.cuh"

/// Computes the gradients of K and V, and the gradient of Q as sums in global memory. A block takes a tile of 128 keys
/// of one key head through the rows of all its query heads: the gradients of K and V stay in registers, and no two
/// blocks add to the same ones. One warp copies, and two warpgroups of 64 keys each compute. Three warps look after the
/// sums: one prepares row tiles, one counts finished key tiles, and one writes complete sums as the gradient of Q.
namespace flashmask::cuda::sm90 {

/// What the copy engine reads; bias: for kernels that copy one, else null.
struct ColumnTensors {
  const CUtensorMap *q, *k, *v, *grad_o, *o_quarters, *grad_o_quarters;
  const BiasMap* bias;
};

template <class Shape>
__device__ __forceinline__ void run_column_roles(const ColumnArguments& arguments, const ColumnTensors& tensors) {
  if (!arguments.choice.has_the_work()) return;
  auto& shared = begin_sharing<ColumnMemory<Shape>>({tensors.q, tensors.k, tensors.v, tensors.grad_o});
  if (threadIdx.x < 128) {
    give_registers<Shape::kProducerRegisters>();
    const int warp = __shfl_sync(~0U, threadIdx.x / 32, 0);  // broadcast, so the compiler knows it to be uniform
    if (warp == 0) {
      ColumnProducer<Shape>(shared, arguments, tensors.q, tensors.k, tensors.v, tensors.grad_o, tensors.bias).run();
    } else if constexpr (Shape::kSums) {
      if (warp == 1) {
        ColumnCounter<Shape>(shared, arguments).run();
      } else if (warp == 2) {
        RowPrologue<Shape>(shared, arguments, tensors.o_quarters, tensors.grad_o_quarters).run();
      } else {
        RowEpilogue<Shape>(shared, arguments).run();
      }
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    if constexpr (Shape::kSums)
      ColumnConsumer<Shape>(shared, arguments, tensors.bias).run();
    else
      CarriedColumnConsumer<Shape>(shared, arguments).run();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    column_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                  const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap grad_o,
                  const __grid_constant__ CUtensorMap o_quarters, const __grid_constant__ CUtensorMap grad_o_quarters,
                  const __grid_constant__ ColumnArguments arguments) {
  run_column_roles<Shape>(arguments, {&q, &k, &v, &grad_o, &o_quarters, &grad_o_quarters, nullptr});
}

/// The kernel of shapes that copy a bias.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    biased_column_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                         const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap grad_o,
                         const __grid_constant__ CUtensorMap o_quarters,
                         const __grid_constant__ CUtensorMap grad_o_quarters,
                         const __grid_constant__ ColumnArguments arguments, const __grid_constant__ BiasMap bias) {
  run_column_roles<Shape>(arguments, {&q, &k, &v, &grad_o, &o_quarters, &grad_o_quarters, &bias});
}

}  // namespace flashmask::cuda::sm90
