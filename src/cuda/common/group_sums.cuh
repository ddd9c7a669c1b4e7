// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"
#include "flashmask/tensor.h"

/// Gradients of q and k where heads share them: each head writes its own part, and then they are added up.
namespace flashmask::cuda {

inline constexpr int kGroupSumThreads = 128;

struct GroupSumArguments {
  const std::uint16_t* parts;  ///< [batch][row][head][dim]
  std::uint16_t* sum;
  std::int64_t sum_batch, sum_row, sum_head;
  std::int64_t rows;  ///< over all batch entries
  int length, key_heads, group, dim;
};

/// Adds up the heads of each group, a thread per eight numbers: with fewer, what finds their place would take longer
/// than memory does.
template <class T>
__global__ void __launch_bounds__(kGroupSumThreads)
    group_sum_kernel(const __grid_constant__ GroupSumArguments arguments) {
  const int units = arguments.dim / 8;
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kGroupSumThreads + thread_index();
  if (number >= arguments.rows * arguments.key_heads * units) return;
  const int dim = static_cast<int>(number % units) * 8;
  const std::int64_t line = number / units, row = line / arguments.key_heads;
  const int key_head = static_cast<int>(line % arguments.key_heads);
  const std::uint16_t* from = arguments.parts + line * arguments.group * arguments.dim + dim;
  float2 sums[4] = {};
#pragma unroll 4
  for (int i = 0; i < arguments.group; ++i, from += arguments.dim) {
    const uint4 eight = __ldcs(reinterpret_cast<const uint4*>(from));
    const std::uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 part = unpack<T>(words[word]);
      sums[word].x += part.x, sums[word].y += part.y;
    }
  }
  std::uint16_t* const to = arguments.sum + row / arguments.length * arguments.sum_batch +
                            row % arguments.length * arguments.sum_row + key_head * arguments.sum_head + dim;
  *reinterpret_cast<uint4*>(to) = make_uint4(pack<T>(sums[0].x, sums[0].y), pack<T>(sums[1].x, sums[1].y),
                                             pack<T>(sums[2].x, sums[2].y), pack<T>(sums[3].x, sums[3].y));
}

/// Allocates parts (batch, length, heads, dim) of a gradient, whose heads are shared by `group` of them.
template <class Launcher>
TensorView allocate_parts(Launcher& launcher, const TensorView& sum, int group) {
  TensorView parts = sum;
  parts.shape[2] *= group;
  parts.strides[3] = 1;
  for (int axis = 2; axis >= 0; --axis)
    parts.strides[static_cast<std::size_t>(axis)] =
        parts.strides[static_cast<std::size_t>(axis) + 1] * parts.shape[static_cast<std::size_t>(axis) + 1];
  parts.data = launcher.allocate(static_cast<std::size_t>(parts.strides[0] * parts.shape[0]) * 2);
  return parts;
}

/// Adds the heads of each group up, in order.
template <class T, class Launcher>
void add_groups(const Launcher& launcher, const TensorView& parts, const TensorView& to, int group) {
  GroupSumArguments sum{};
  sum.parts = static_cast<const std::uint16_t*>(parts.data);
  sum.sum = static_cast<std::uint16_t*>(to.data);
  sum.sum_batch = to.strides[0], sum.sum_row = to.strides[1], sum.sum_head = to.strides[2];
  sum.rows = to.shape[0] * to.shape[1];
  sum.length = static_cast<int>(to.shape[1]);
  sum.key_heads = static_cast<int>(to.shape[2]);
  sum.group = group;
  sum.dim = static_cast<int>(to.shape[3]);
  const std::int64_t units = sum.rows * sum.key_heads * (sum.dim / 8);
  launcher.template launch<int>("linear attention: sums of groups", group_sum_kernel<T>,
                                (units + kGroupSumThreads - 1) / kGroupSumThreads, kGroupSumThreads, sum);
}

}  // namespace flashmask::cuda
