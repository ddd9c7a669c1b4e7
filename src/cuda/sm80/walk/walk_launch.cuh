// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/runtime/status.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/walk/walk.h"
#include "cuda/sm80/walk/walk_calls.cuh"

namespace flashmask::cuda::sm80 {

/// Launches in a stream, with memory from a workspace; where that is null it only counts what a call takes.
class WalkLauncher {
 public:
  WalkLauncher(std::byte* workspace, void* stream)
      : workspace_(workspace), stream_(static_cast<cudaStream_t>(stream)) {}

  /// At least one unit, so that a call's memory has an address even where there are only zeros to write.
  std::size_t used() const { return std::max(used_, kAlignment); }

  void* allocate(std::size_t bytes) {
    // Where memory is only counted, an address that stands for some.
    std::byte* const memory = workspace_ == nullptr ? reinterpret_cast<std::byte*>(kAlignment) : workspace_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return memory;
  }

  template <class Memory, class Arguments>
  void launch(const char* what, void (*kernel)(Arguments), std::int64_t blocks, int threads,
              const Arguments& arguments) const {
    if (workspace_ == nullptr || blocks == 0) return;
    if (blocks > 2147483647)
      throw Error(Status::unsupported, std::string(what) + ": " + std::to_string(blocks) +
                                           " blocks; expected at most 2147483647: give fewer tokens or heads at once");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          what);
    cuda::launch<Memory>(what, kernel, static_cast<int>(blocks), threads, stream_, arguments);
  }

 private:
  static constexpr std::size_t kAlignment = 256;

  std::byte* workspace_;
  std::size_t used_ = 0;
  cudaStream_t stream_;
};

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearForwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  WalkLauncher launcher(workspace, stream);
  WalkCalls<T, WalkLauncher>(problem, tables.plan, tables.view, tables.padding, launcher).forward(tensors);
  return launcher.used();
}

template <class T>
std::size_t launch_linear(const LinearProblem& problem, const WalkTables& tables, const LinearBackwardTensors& tensors,
                          std::byte* workspace, void* stream) {
  WalkLauncher launcher(workspace, stream);
  WalkCalls<T, WalkLauncher>(problem, tables.plan, tables.view, tables.padding, launcher).backward(tensors);
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
