// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <string>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"
#include "plan/copy_to_host.h"
#include "plan/device_plan.h"

namespace flashmask {

std::shared_ptr<void> device_memory(Device device, void* stream, std::size_t bytes) {
  const cuda::CurrentDevice current(device);
  void* memory = nullptr;
  cuda::check(cudaMallocAsync(&memory, bytes, static_cast<cudaStream_t>(stream)), "device_memory of ",
              (std::to_string(bytes) + " bytes").c_str());
  return {memory, [device, stream](void* freed) {
            // What fails here has no caller to tell: the driver frees the memory when the process ends.
            try {
              const cuda::CurrentDevice owner(device);
              (void)cudaFreeAsync(freed, static_cast<cudaStream_t>(stream));
            } catch (const Error&) {
            }
          }};
}

std::vector<std::byte> copy_to_host(Device device, void* stream, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  const cuda::CurrentDevice current(device);
  const auto on = static_cast<cudaStream_t>(stream);
  std::vector<std::byte> copy(bytes.size());
  cuda::check(cudaMemcpyAsync(copy.data(), bytes.data(), bytes.size(), cudaMemcpyDeviceToHost, on),
              "copying to the host ", (std::to_string(bytes.size()) + " bytes").c_str());
  cuda::check(cudaStreamSynchronize(on), "copying to the host");
  return copy;
}

}  // namespace flashmask
