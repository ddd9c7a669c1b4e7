// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/problem.h"

namespace flashmask::cuda {

/// Asks for as much shared memory as there is, so that as many blocks fit as registers allow; where a call reads a bias
/// tensor through the L1 cache, for no more than `blocks` blocks take, so that the cache has the rest.
template <class Memory, class Kernel>
void divide_memory(const std::string& what, Kernel kernel, int blocks, const Problem& problem) {
  int percent = cudaSharedmemCarveoutMaxShared;
  if (has_bias_tensor(problem)) {
    const std::size_t all = device_facts(problem.device).shared_bytes;
    percent =
        static_cast<int>(std::min<std::size_t>((100 * shared_of_blocks(sizeof(Memory), blocks) + all - 1) / all, 100));
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent),
        what + ": shared memory");
}

/// Launches a kernel whose blocks each have a Memory in shared memory. `what`: the kernel's name in error messages.
template <class Memory, class... Parameters>
void launch(const std::string& what, void (*kernel)(Parameters...), int blocks, int threads, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  constexpr int kBytes = sizeof(Memory);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), what + ": shared memory");
  kernel<<<blocks, threads, kBytes, stream>>>(arguments...);
  check(cudaGetLastError(), what);
}

}  // namespace flashmask::cuda
