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
  void* places[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  // Not by <<<>>>, which a kernel that was compiled at run time has no stub for.
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads, places, kBytes, stream), what);
}

}  // namespace flashmask::cuda
