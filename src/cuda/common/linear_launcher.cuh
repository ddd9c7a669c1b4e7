// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda {

/// Launches in a stream, with memory from a workspace; where that is null it only counts what a call takes.
class LinearLauncher {
 public:
  LinearLauncher(std::byte* workspace, void* stream)
      : workspace_(workspace), stream_(static_cast<cudaStream_t>(stream)) {}

  /// Whether nothing is launched.
  bool counts() const { return workspace_ == nullptr; }
  /// At least one unit, so that a call's memory has an address even where there are only zeros to write.
  std::size_t used() const { return std::max({most_, used_, kAlignment}); }

  /// Lets later launches have the memory that was allocated since mark().
  std::size_t mark() const { return used_; }
  void rewind(std::size_t mark) {
    most_ = std::max(most_, used_);
    used_ = mark;
  }

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
  std::size_t used_ = 0, most_ = 0;
  cudaStream_t stream_;
};

}  // namespace flashmask::cuda
