// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kit/device_memory.h"

namespace flashmask::check {

/// Numbers on the device. Not given, they are NaN, or −1.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count), memory_(count * sizeof(T)) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { memory_.upload(values.data()); }

  T* data() const { return static_cast<T*>(memory_.data()); }

  /// Waits for the device.
  std::vector<T> values() const {
    synchronize_device();
    std::vector<T> values(count_);
    memory_.download(values.data());
    return values;
  }

 private:
  std::size_t count_;
  DeviceMemory memory_;
};

}  // namespace flashmask::check
