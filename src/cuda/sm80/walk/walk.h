// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cuda/sm80/walk/walk_plan.h"
#include "flashmask/linear_attention.h"
#include "plan/linear.h"

namespace flashmask::cuda::sm80 {

/// Linear attention in bfloat16 and float16.
KernelEntries linear_kernels();

/// A plan's tables on its device.
struct WalkTables {
  WalkPlan plan;
  WalkPlanView view;
  const std::int64_t* padding;
};

/// Launches a call, T: of the problem's dtype. Returns the bytes of workspace that it takes; where `workspace` is null
/// it does nothing else.
template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearForwardTensors& tensors,
                          std::byte* workspace, void* stream);
template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearBackwardTensors& tensors,
                          std::byte* workspace, void* stream);

/// Returns the most shared memory that a block of a problem's kernels takes.
template <class T>
std::size_t linear_shared_bytes(const LinearProblem& problem);

}  // namespace flashmask::cuda::sm80
