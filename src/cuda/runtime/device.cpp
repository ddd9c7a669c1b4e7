#include "cuda/runtime/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/runtime/status.h"

namespace flashmask::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

std::string to_string(ComputeCapability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

/// Empty where there is no driver.
std::vector<ComputeCapability> ask_capabilities() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    // Clears the error, which the runtime would report to the next caller.
    cudaGetLastError();
    return {};
  }
  std::vector<ComputeCapability> found;
  for (int device = 0; device < count; ++device)
    found.push_back(
        {attribute(cudaDevAttrComputeCapabilityMajor, device), attribute(cudaDevAttrComputeCapabilityMinor, device)});
  return found;
}

/// Of this machine's devices, by index. Asked for once, as devices do not change while a process runs, and every plan
/// looks at many rows of the kernel table.
const std::vector<ComputeCapability>& capabilities() {
  static const std::vector<ComputeCapability> found = ask_capabilities();
  return found;
}

bool exists(Device device) { return device.index >= 0 && device.index < std::ssize(capabilities()); }

}  // namespace

CurrentDevice::CurrentDevice(Device device) {
  if (!exists(device))
    throw Error(Status::invalid_argument, "the device is " + to_string(device) + "; this machine has " +
                                              std::to_string(capabilities().size()) + " CUDA devices");
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(device.index), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() { cudaSetDevice(before_); }

std::string capability_refusal(ComputeCapability asked) {
  const std::vector<ComputeCapability>& devices = capabilities();
  if (devices.empty()) return "this machine has no CUDA device, or no driver for it";
  if (std::ranges::find(devices, asked) != devices.end()) return "";
  return "no CUDA device of this machine has compute capability " + to_string(asked);
}

std::string capability_refusal(Device device, ComputeCapability asked) {
  if (!exists(device)) return "";
  const ComputeCapability own = capabilities()[static_cast<std::size_t>(device.index)];
  return own == asked ? ""
                      : to_string(device) + " has compute capability " + to_string(own) + ", not " + to_string(asked);
}

int multiprocessors() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace flashmask::cuda
