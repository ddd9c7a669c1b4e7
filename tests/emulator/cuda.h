// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

/// Stands in for the driver's type where kernels are compiled for a CPU: boxes of 64 columns and some rows of one head
/// of a tensor (batch, sequence, heads, dim) of 16-bit numbers.
struct CUtensorMap {
  std::uint16_t* data = nullptr;
  std::array<std::int64_t, 4> sizes{}, strides{};  ///< innermost first; strides in numbers
  int rows = 0;

  /// Returns where a number is; null out of bounds.
  std::uint16_t* at(int x, int y, int z, int w) const {
    const std::array<std::int64_t, 4> place = {x, y, z, w};
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      if (place[i] < 0 || place[i] >= sizes[i]) return nullptr;
      offset += place[i] * strides[i];
    }
    return data + offset;
  }
};
