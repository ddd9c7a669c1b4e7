// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>

#include "flashmask/tensor.h"

namespace flashmask {

/// Whether each `count` 16-bit values of a row of a bias, from every count-th column on, are aligned memory.
inline bool comes_in(const TensorView& values, int count) {
  std::int64_t steps = values.shape[3];
  for (const std::size_t axis : {0, 1, 2})
    if (values.shape[axis] > 1) steps |= values.strides[axis];
  return values.dtype != DType::f32 &&
         reinterpret_cast<std::uintptr_t>(values.data) % (2 * static_cast<std::uintptr_t>(count)) == 0 &&
         steps % count == 0;
}
/// Whether that goes for eights, and strides fit 32 bits.
inline bool comes_in_eights(const TensorView& values) {
  const auto is_short = [&](std::size_t axis) {
    return values.shape[axis] == 1 || std::abs(values.strides[axis]) < std::int64_t{1} << 31;
  };
  return comes_in(values, 8) && is_short(0) && is_short(1) && is_short(2);
}

}  // namespace flashmask
