// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/linear_launcher.cuh"
#include "cuda/sm90/walk/walk.h"
#include "cuda/sm90/walk/walk_calls.cuh"

namespace flashmask::cuda::sm90 {

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearForwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  LinearLauncher launcher(workspace, stream);
  WalkCalls<T, LinearLauncher>(problem, tables, launcher).forward(tensors);
  return launcher.used();
}

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearBackwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  LinearLauncher launcher(workspace, stream);
  WalkCalls<T, LinearLauncher>(problem, tables, launcher).backward(tensors);
  return launcher.used();
}

}  // namespace flashmask::cuda::sm90
