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

bool has_capability(int device, int major, int minor) {
  return attribute(cudaDevAttrComputeCapabilityMajor, device) == major &&
         attribute(cudaDevAttrComputeCapabilityMinor, device) == minor;
}

std::string dotted(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

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
    if (has_capability(device, major, minor)) return "";
  return "no CUDA device of this machine has compute capability " + dotted(major, minor);
}

std::string capability_refusal(Device device, int major, int minor) {
  if (device.index < 0 || device.index >= device_count() || has_capability(device.index, major, minor)) return "";
  return to_string(device) + " has compute capability " +
         dotted(attribute(cudaDevAttrComputeCapabilityMajor, device.index),
                attribute(cudaDevAttrComputeCapabilityMinor, device.index)) +
         ", not " + dotted(major, minor);
}

int multiprocessors() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace flashmask::cuda
