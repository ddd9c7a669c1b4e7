// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/compile/compiled_kernel.h"
#include "cuda/sm90/forward/forward_shape.h"

/// Kernels of plain shapes that are compiled for a change of scores (forward_changing.cu): nvcc makes none of them.
namespace flashmask::cuda::sm90 {

/// max_scores: of the kernel that also keeps the largest scores.
template <class Shape>
KernelCode changed_forward_code(bool max_scores);

template <class Shape>
void launch_changed_forward(const Plan& plan, const ForwardTensors& tensors, ForwardArguments arguments,
                            const ForwardMaps& maps, int blocks, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
