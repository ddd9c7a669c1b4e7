// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/merge.h"

namespace flashmask {

/// The sizes of a merge's tensors, which have been checked: (batch, rows, heads, dim).
struct MergeExtent {
  std::int64_t batch, rows, heads, dim;
};

void merge_on_cpu(const MergeTensors& tensors, const MergeExtent& extent, Executor& executor);
void merge_backward_on_cpu(const MergeGradients& tensors, const MergeExtent& extent, Executor& executor);

/// `stream`: a cudaStream_t.
void merge_on_gpu(const MergeTensors& tensors, const MergeExtent& extent, void* stream);
void merge_backward_on_gpu(const MergeGradients& tensors, const MergeExtent& extent, void* stream);

}  // namespace flashmask
