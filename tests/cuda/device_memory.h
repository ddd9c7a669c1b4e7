#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "check/host_tensor.h"
#include "cuda/status.h"

namespace flashmask::check {

/// Memory of the current device, filled with 0xff: NaN in every dtype, −1 in integers.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    cuda::check(cudaMalloc(&data_, bytes + 1), "cudaMalloc");
    cuda::check(cudaMemset(data_, 0xff, bytes), "cudaMemset");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  void upload(const void* from) { cuda::check(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), "upload"); }
  void download(void* to) const { cuda::check(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), "download"); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// A copy of a host tensor on the device.
class DeviceTensor {
 public:
  explicit DeviceTensor(const TensorView& host)
      : host_(host), memory_(static_cast<std::size_t>(count(host)) * size_in_bytes(host.dtype)) {
    memory_.upload(host.data);
  }

  TensorView view() const {
    TensorView view = host_;
    view.data = memory_.data();
    view.device = {DeviceType::cuda, 0};
    return view;
  }
  /// Into the host tensor that it is a copy of.
  void download() const { memory_.download(host_.data); }

 private:
  static std::int64_t count(const TensorView& view) {
    std::int64_t size = 1;
    for (int axis = 0; axis < view.rank; ++axis) size *= view.shape[static_cast<std::size_t>(axis)];
    return size;
  }

  TensorView host_;
  DeviceMemory memory_;
};

}  // namespace flashmask::check
