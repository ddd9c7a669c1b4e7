// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "flashmask/dtype.h"
#include "flashmask/export.h"
#include "flashmask/language_standard.h"

namespace flashmask {

enum class DeviceType : std::uint8_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

/// A strided view of memory that the caller owns. Strides are in elements; the last one is 1.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = {};
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};

  bool present() const { return rank != 0; }
};

/// Returns a row-major view of `shape`, for contiguous tensors.
FLASHMASK_API TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape);

FLASHMASK_API std::size_t size_in_bytes(DType dtype);
FLASHMASK_API std::string to_string(DType dtype);
FLASHMASK_API std::string to_string(Device device);

}  // namespace flashmask
