// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "cuda/runtime/status.h"

namespace flashmask::cuda {

/// Launches a kernel whose blocks each have a Memory in shared memory. `what`: the kernel's name in error messages.
template <class Memory, class... Parameters>
void launch(const char* what, void (*kernel)(Parameters...), int blocks, int threads, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  constexpr int kBytes = sizeof(Memory);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), what, ": shared memory");
  kernel<<<blocks, threads, kBytes, stream>>>(arguments...);
  check(cudaGetLastError(), what);
}

}  // namespace flashmask::cuda
