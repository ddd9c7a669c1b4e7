// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/device_plan.h"

namespace flashmask {

std::uint64_t stream_capture(Device device, void* stream) {
  const cuda::CurrentDevice current(device);
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cuda::check(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id), "stream_capture");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

}  // namespace flashmask
