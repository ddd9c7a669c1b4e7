// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/device_tables.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda {

void DeviceTables::upload() {
  const CurrentDevice current(device_);
  check(cudaMalloc(&memory_, host_.size()), "linear_plan: ", (std::to_string(host_.size()) + " bytes").c_str());
  check(cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice), "linear_plan: copying its tables");
  host_ = {};
}

DeviceTables::~DeviceTables() {
  try {
    const CurrentDevice current(device_);
    (void)cudaFree(memory_);  // waits for the device
  } catch (const Error&) {    // there is no caller to tell
  }
}

}  // namespace flashmask::cuda
