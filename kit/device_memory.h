// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kit/host_tensor.h"

/// The GPU calls that the tests and the command make themselves. In a build without CUDA there are no devices, and
/// everything else throws.
namespace flashmask::check {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t bytes = 0;
};

/// The CUDA devices of this machine, by index.
std::vector<DeviceFacts> cuda_devices();

/// Makes a CUDA device current for later calls. Throws Status::invalid_argument where the machine has no device of that
/// index.
void use_device(Device device);

/// Waits for all work of the current device.
void synchronize_device();

/// Memory of the current device, filled with 0xff: NaN in every dtype, −1 in integers. Streams need not wait for the
/// constructor or upload(): both return only when they are done.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  void upload(const void* from);
  void download(void* to) const;
  /// Copies from memory of the same size on the same device, in the default stream.
  void copy(const DeviceMemory& from);
  /// Fills the memory with 0xff again, in the default stream.
  void clear();

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// A moment in the current device's default stream.
class DeviceEvent {
 public:
  DeviceEvent();

  void record();
  /// Waits for both events.
  double seconds_since(const DeviceEvent& earlier) const;

 private:
  std::shared_ptr<void> event_;
};

/// A copy of a host tensor on the current device.
class DeviceTensor {
 public:
  explicit DeviceTensor(const TensorView& host, Device device = {DeviceType::cuda, 0})
      : host_(host), device_(device), memory_(count(host) * size_in_bytes(host.dtype)) {
    memory_.upload(host.data);
  }

  TensorView view() const {
    TensorView view = host_;
    view.data = memory_.data();
    view.device = device_;
    return view;
  }
  /// Copies the values back into the host tensor.
  void download() const { memory_.download(host_.data); }

 private:
  static std::size_t count(const TensorView& view) {
    std::int64_t size = 1;
    for (int axis = 0; axis < view.rank; ++axis) size *= view.shape[static_cast<std::size_t>(axis)];
    return static_cast<std::size_t>(size);
  }

  TensorView host_;
  Device device_;
  DeviceMemory memory_;
};

}  // namespace flashmask::check
