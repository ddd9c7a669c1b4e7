// SPDX-License-Identifier: Apache-2.0
#include "kit/device_memory.h"

#include <cuda_runtime_api.h>

#include "flashmask/error.h"

namespace flashmask::check {
namespace {

void expect_success(cudaError_t answer, const std::string& call) {
  if (answer == cudaSuccess) return;
  const Status status = answer == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::internal;
  throw Error(status, call + ": " + cudaGetErrorString(answer));
}

/// Returns 0 where there is no driver, and clears the error, which the runtime would report to the next caller.
int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

cudaEvent_t event_of(const std::shared_ptr<void>& held) { return static_cast<cudaEvent_t>(held.get()); }

}  // namespace

std::vector<DeviceFacts> cuda_devices() {
  std::vector<DeviceFacts> devices;
  for (int index = 0; index < device_count(); ++index) {
    cudaDeviceProp properties{};
    expect_success(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    devices.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                       properties.totalGlobalMem});
  }
  return devices;
}

void use_device(Device device) {
  const int count = device_count();
  if (device.index >= count)
    throw Error(Status::invalid_argument,
                "the device is " + to_string(device) + "; this machine has " + std::to_string(count) + " CUDA devices");
  expect_success(cudaSetDevice(device.index), "cudaSetDevice");
}

void synchronize_device() { expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  expect_success(cudaMalloc(&data_, bytes + 1), "cudaMalloc of " + std::to_string(bytes) + " bytes");
  clear();
  synchronize_device();
}

void DeviceMemory::clear() { expect_success(cudaMemsetAsync(data_, 0xff, bytes_, nullptr), "cudaMemsetAsync"); }

void DeviceMemory::copy(const DeviceMemory& from) {
  expect_success(cudaMemcpyAsync(data_, from.data_, bytes_, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void DeviceMemory::upload(const void* from) {
  expect_success(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), "upload");
  synchronize_device();
}

void DeviceMemory::download(void* to) const {
  expect_success(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), "download");
}

DeviceEvent::DeviceEvent() {
  cudaEvent_t event = nullptr;
  expect_success(cudaEventCreate(&event), "cudaEventCreate");
  event_.reset(event, [](cudaEvent_t made) { cudaEventDestroy(made); });
}

void DeviceEvent::record() { expect_success(cudaEventRecord(event_of(event_), nullptr), "cudaEventRecord"); }

double DeviceEvent::seconds_since(const DeviceEvent& earlier) const {
  float milliseconds = 0;
  expect_success(cudaEventSynchronize(event_of(event_)), "cudaEventSynchronize");
  expect_success(cudaEventElapsedTime(&milliseconds, event_of(earlier.event_), event_of(event_)),
                 "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace flashmask::check
