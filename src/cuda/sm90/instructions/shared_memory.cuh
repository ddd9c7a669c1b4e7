// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "cuda/sm90/instructions/ptx.h"

namespace flashmask::cuda::sm90 {

constexpr int kSharedMemory = 227 << 10;  // bytes that a block may have

/// Returns the block's shared memory; all its threads call this first. Runs init_barriers(), and prefetches the tensor
/// maps that are not null.
template <class Memory>
__device__ __forceinline__ Memory& begin_sharing(std::initializer_list<const CUtensorMap*> maps) {
  static_assert(sizeof(Memory) <= kSharedMemory);
  auto& shared = shared_memory<Memory>();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : maps)
      if (map != nullptr) prefetch_tensor_map(map);
    init_barriers(shared);
  }
  __syncthreads();
  return shared;
}

}  // namespace flashmask::cuda::sm90
