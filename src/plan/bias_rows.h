// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "flashmask/tensor.h"

namespace flashmask {

/// Sets a row of a (batch, heads, rows, values) tensor to zero; `list` counts batch and heads.
inline void clear_bias_row(const TensorView& bias, std::int64_t list, std::int64_t row) {
  const std::int64_t offset =
      list / bias.shape[1] * bias.strides[0] + list % bias.shape[1] * bias.strides[1] + row * bias.strides[2];
  const std::size_t element = size_in_bytes(bias.dtype);
  std::memset(static_cast<std::byte*>(bias.data) + offset * static_cast<std::int64_t>(element), 0,
              static_cast<std::size_t>(bias.shape[3]) * element);
}

}  // namespace flashmask
