// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/runtime/device.h"
#include "cuda/sm90/forward/forward_kernel.cuh"
#include "cuda/sm90/instructions/tensor_map.h"

namespace flashmask::cuda::sm90 {

template <class Shape>
void attend(const ForwardArguments& arguments, const ForwardTensors& tensors, cudaStream_t stream) {
  const CUtensorMap q = make_tensor_map("forward: q", tensors.q, Shape::kRows);
  const CUtensorMap k = make_tensor_map("forward: k", tensors.k, Shape::kColumns);
  const CUtensorMap v = make_tensor_map("forward: v", tensors.v, Shape::kColumns);
  const CUtensorMap o = make_tensor_map("forward: o", tensors.o, kWarpRows),
                    o_row = make_tensor_map("forward: o", tensors.o, 1);
  const int blocks = std::min(arguments.items, multiprocessors() * Shape::kBlocks);
  launch<RowMemory<Shape>>("forward", forward_kernel<Shape>, blocks, Shape::kThreads, stream, q, k, v, o, o_row,
                           arguments);
}

}  // namespace flashmask::cuda::sm90
