// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Tables of a plan in one allocation on its device: add() each, upload() once, then at() says where they lie.
class DeviceTables {
 public:
  explicit DeviceTables(Device device) : device_(device) {}
  /// Waits for the device, so that no call still reads the tables.
  ~DeviceTables();
  DeviceTables(const DeviceTables&) = delete;
  DeviceTables& operator=(const DeviceTables&) = delete;

  /// Returns the table's place.
  template <class Row>
  std::size_t add(const std::vector<Row>& table) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t at = (host_.size() + kAlignment - 1) / kAlignment * kAlignment,
                      bytes = table.size() * sizeof(Row);
    host_.resize(at + bytes + kAlignment);
    if (bytes != 0) std::memcpy(host_.data() + at, table.data(), bytes);
    return at;
  }

  void upload();

  template <class Row>
  const Row* at(std::size_t place) const {
    return reinterpret_cast<const Row*>(static_cast<const std::byte*>(memory_) + place);
  }

 private:
  Device device_;
  std::vector<std::byte> host_;
  void* memory_ = nullptr;
};

}  // namespace flashmask::cuda
