// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cuda/sm90/walk/walk_tables.h"
#include "flashmask/linear_attention.h"
#include "plan/linear.h"

namespace flashmask::cuda::sm90 {

/// Linear attention in bfloat16 and float16, by wgmma.
KernelEntries linear_kernels();

/// Launches a call, T: of the problem's dtype. Returns the bytes of workspace that it takes; where `workspace` is null
/// it does nothing else.
template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearForwardTensors& tensors,
                          std::byte* workspace, void* stream);
template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearBackwardTensors& tensors,
                          std::byte* workspace, void* stream);

}  // namespace flashmask::cuda::sm90
