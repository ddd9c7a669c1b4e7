// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmask/tensor.h"

namespace flashmask {

/// A tensor as a grid of tokens and heads, with `width` bytes per token and head.
struct TokenRows {
  std::byte* data;
  std::int64_t batch, tokens, heads, width;
  std::int64_t batch_stride, token_stride, head_stride;  ///< in bytes

  /// Takes a (batch, token, head, value) tensor, or lse as (batch, head, token).
  explicit TokenRows(const TensorView& tensor) : data(static_cast<std::byte*>(tensor.data)) {
    const auto element = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
    const std::size_t token_axis = tensor.rank == 3 ? 2 : 1;
    const std::size_t head_axis = tensor.rank == 3 ? 1 : 2;
    batch = tensor.shape[0];
    tokens = tensor.shape[token_axis];
    heads = tensor.shape[head_axis];
    width = tensor.rank == 3 ? element : tensor.shape[3] * element;
    batch_stride = tensor.strides[0] * element;
    token_stride = tensor.strides[token_axis] * element;
    head_stride = tensor.strides[head_axis] * element;
  }

  std::byte* at(std::int64_t entry, std::int64_t token) const {
    return data + entry * batch_stride + token * token_stride;
  }
};

}  // namespace flashmask
