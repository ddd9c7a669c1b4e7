// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/common/linear_launcher.cuh"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/walk/sliced_calls.cuh"
#include "cuda/sm80/walk/walk.h"

namespace flashmask::cuda::sm80 {

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearForwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  LinearLauncher launcher(workspace, stream);
  SlicedCalls<T, LinearLauncher>(problem, tables.plan, tables.view, tables.padding, launcher).forward(tensors);
  return launcher.used();
}

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearBackwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  LinearLauncher launcher(workspace, stream);
  SlicedCalls<T, LinearLauncher>(problem, tables.plan, tables.view, tables.padding, launcher).backward(tensors);
  return launcher.used();
}

template <class T>
std::size_t linear_shared_bytes(const LinearProblem& problem) {
  static_assert(sizeof(CounterpartMemory<WalkShape<T, 128, 128>>) <= kCompactSharedBytes);
  const std::size_t walk = std::max(problem.key_dim, problem.value_dim) <= 64
                               ? sizeof(CounterpartMemory<WalkShape<T, 64, 64>>)
                               : sizeof(CounterpartMemory<WalkShape<T, 128, 128>>);
  return std::max(walk, sizeof(GateGradientMemory<WalkShape<T, 128, 128>>));
}

}  // namespace flashmask::cuda::sm80
