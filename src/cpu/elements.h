// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/half.h"
#include "cpu/scalar_vector.h"
#include "flashmask/tensor.h"

/// Single elements of a tensor of any dtype, by their offset in elements.
namespace flashmask::cpu {

inline float read_element(const TensorView& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case DType::bf16:
      return Scalar::widen_one(static_cast<const Bf16*>(tensor.data)[offset]);
    case DType::f16:
      return Scalar::widen_one(static_cast<const F16*>(tensor.data)[offset]);
    default:
      return static_cast<const float*>(tensor.data)[offset];
  }
}

/// Writes `count` elements in a row.
inline void write_elements(const TensorView& tensor, std::int64_t offset, const float* values, std::int64_t count) {
  const auto narrow = [&](auto* to) {
    for (std::int64_t i = 0; i < count; ++i) Scalar::narrow_one(to + i, values[i]);
  };
  switch (tensor.dtype) {
    case DType::bf16:
      return narrow(static_cast<Bf16*>(tensor.data) + offset);
    case DType::f16:
      return narrow(static_cast<F16*>(tensor.data) + offset);
    default:
      return narrow(static_cast<float*>(tensor.data) + offset);
  }
}

inline void write_element(const TensorView& tensor, std::int64_t offset, float value) {
  write_elements(tensor, offset, &value, 1);
}

}  // namespace flashmask::cpu
