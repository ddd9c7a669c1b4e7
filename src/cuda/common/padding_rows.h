// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/tensor.h"

/// Rows of linear attention's outputs that no kernel writes, since they are in no node.
namespace flashmask::cuda {

struct PaddingArguments {
  const std::int64_t* tokens;  ///< of padding, over all batch entries
  std::int64_t count;
  int length, heads, width;  ///< width and strides in 16-bit numbers
  std::uint16_t* data;
  std::int64_t batch, row, head;

  std::int64_t numbers() const { return count * heads * width; }
};

inline constexpr int kPaddingThreads = 256;

/// Writes zeros to the rows of padding, a thread per 16 bits.
__global__ void clear_padding_kernel(const __grid_constant__ PaddingArguments arguments);

/// Clears the `count` rows of padding of a tensor (batch, length, heads[, dim]). Launcher: as in linear_launcher.cuh.
template <class Launcher>
void clear_padding(const Launcher& launcher, const TensorView& to, const std::int64_t* tokens, std::int64_t count) {
  if (!to.present() || count == 0) return;
  const auto words = static_cast<std::int64_t>(size_in_bytes(to.dtype)) / 2;
  PaddingArguments clear{};
  clear.tokens = tokens;
  clear.count = count;
  clear.length = static_cast<int>(to.shape[1]);
  clear.heads = static_cast<int>(to.shape[2]);
  clear.width = static_cast<int>((to.rank == 4 ? to.shape[3] : 1) * words);
  clear.data = static_cast<std::uint16_t*>(to.data);
  clear.batch = to.strides[0] * words, clear.row = to.strides[1] * words, clear.head = to.strides[2] * words;
  launcher.template launch<int>("linear attention: padding", clear_padding_kernel,
                                (clear.numbers() + kPaddingThreads - 1) / kPaddingThreads, kPaddingThreads, clear);
}

}  // namespace flashmask::cuda
