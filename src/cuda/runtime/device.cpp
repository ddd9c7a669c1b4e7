// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda {

void check(cudaError_t answer, const char* call, const char* of) {
  if (answer == cudaSuccess) return;
  const Status status = answer == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::internal;
  throw Error(status, std::string(call) + of + ": " + cudaGetErrorString(answer));
}

namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

std::string to_string(ComputeCapability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

std::size_t bytes(cudaDeviceAttr which, int device) { return static_cast<std::size_t>(attribute(which, device)); }

DeviceFacts ask_facts(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return {static_cast<const char*>(properties.name),
          {properties.major, properties.minor},
          properties.multiProcessorCount,
          bytes(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          bytes(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
          bytes(cudaDevAttrL2CacheSize, device)};
}

/// Returns nothing where there is no driver.
std::vector<DeviceFacts> ask_all_facts() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    // Clears the error, which the runtime would report to the next caller.
    cudaGetLastError();
    return {};
  }
  std::vector<DeviceFacts> found;
  for (int device = 0; device < count; ++device) found.push_back(ask_facts(device));
  return found;
}

/// Returns the facts of this machine's devices, by index. Queries them once, as devices do not change while a process
/// runs, and every plan looks at many entries of the kernel table.
const std::vector<DeviceFacts>& all_facts() {
  // Never destroyed: other threads may be calling while the process ends.
  static const auto& found = *new std::vector<DeviceFacts>(ask_all_facts());
  return found;
}

bool exists(Device device) { return device.index >= 0 && device.index < std::ssize(all_facts()); }

std::string why_none_here() {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return why_no_device(driver, CUDART_VERSION);
}

void check_exists(Device device) {
  if (exists(device)) return;
  const std::size_t count = all_facts().size();
  throw Error(Status::invalid_argument,
              "the device is " + to_string(device) + "; " +
                  (count == 0 ? why_none_here() : "this machine has " + std::to_string(count) + " CUDA devices"));
}

/// Returns a version as people write it: 12.4 for 12040.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string kilobytes(std::size_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KB"; }

}  // namespace

CurrentDevice::CurrentDevice(Device device) {
  check_exists(device);
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(device.index), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() { cudaSetDevice(before_); }

const DeviceFacts& device_facts(Device device) {
  check_exists(device);
  return all_facts()[static_cast<std::size_t>(device.index)];
}

std::string device_refusal(const DeviceNeeds& needs) {
  const std::vector<DeviceFacts>& devices = all_facts();
  if (devices.empty()) return why_none_here();
  std::string first;
  for (int index = 0; index < std::ssize(devices); ++index) {
    const std::string reason = device_refusal(Device{DeviceType::cuda, index}, needs);
    if (reason.empty()) return "";
    if (first.empty()) first = reason;
  }
  return first;
}

std::string device_refusal(Device device, const DeviceNeeds& needs) {
  return exists(device) ? device_refusal(to_string(device), device_facts(device), needs) : "";
}

std::string device_refusal(const std::string& device, const DeviceFacts& facts, const DeviceNeeds& needs) {
  const std::string named = device + " (" + facts.name + ")";
  const bool runs = needs.exactly ? facts.capability == needs.capability : facts.capability >= needs.capability;
  if (!runs)
    return named + " has compute capability " + to_string(facts.capability) + "; it needs " +
           to_string(needs.capability) + (needs.exactly ? "" : " or later");
  if (needs.shared_bytes > facts.block_shared_bytes)
    return "a block takes " + kilobytes(needs.shared_bytes) + " of shared memory; " + named + " has " +
           kilobytes(facts.block_shared_bytes);
  const std::size_t all = shared_of_blocks(needs.shared_bytes, needs.blocks);
  if (needs.shared_bytes != 0 && all > facts.shared_bytes)
    return std::to_string(needs.blocks) + " blocks take " + kilobytes(all) + " of shared memory; a multiprocessor of " +
           named + " has " + kilobytes(facts.shared_bytes);
  return "";
}

std::string why_no_device(int driver, int build) {
  // A runtime works with every driver of its major version or later.
  if (driver == 0 || driver / 1000 >= build / 1000) return "this machine has no CUDA device, or no driver for it";
  return "the driver of this machine is for CUDA " + cuda_version(driver) + "; this build needs one for CUDA " +
         std::to_string(build / 1000) + " or later";
}

int multiprocessors() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace flashmask::cuda
