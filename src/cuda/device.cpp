#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/status.h"

namespace flashmask::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

/// 0 where there is no driver.
int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  // The runtime keeps the error for whoever asks next.
  cudaGetLastError();
  return 0;
}

}  // namespace

CurrentDevice::CurrentDevice(Device device) {
  if (device.index < 0 || device.index >= device_count())
    throw Error(Status::invalid_argument, "the device is " + to_string(device) + "; this machine has " +
                                              std::to_string(device_count()) + " CUDA devices");
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(device.index), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() { cudaSetDevice(before_); }

std::string capability_refusal(int major, int minor) {
  const int devices = device_count();
  if (devices == 0) return "this machine has no CUDA device, or no driver for it";
  for (int device = 0; device < devices; ++device)
    if (attribute(cudaDevAttrComputeCapabilityMajor, device) == major &&
        attribute(cudaDevAttrComputeCapabilityMinor, device) == minor)
      return "";
  return "no CUDA device of this machine has compute capability " + std::to_string(major) + "." + std::to_string(minor);
}

int multiprocessors() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace flashmask::cuda
