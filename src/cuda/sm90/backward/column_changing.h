// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/compile/compiled_kernel.h"
#include "cuda/sm90/backward/column_shape.h"

/// Kernels of plain shapes that are compiled for a change of scores (column_changing.cu): nvcc makes none of them.
namespace flashmask::cuda::sm90 {

template <class Shape>
KernelCode changed_columns_code();

template <class Shape>
void launch_changed_columns(const Problem& problem, const BackwardTensors& tensors, ColumnArguments arguments,
                            const ColumnMaps& maps, int blocks, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
