// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"

namespace flashmask::cuda {

/// Returns the product of two rows of 16-bit numbers, of an even count, by a warp.
template <class T>
__device__ __forceinline__ float product_of_rows(const std::uint16_t* a, const std::uint16_t* b, int dim) {
  float sum = 0;
  for (int i = 2 * (static_cast<int>(thread_index()) % 32); i < dim; i += 64) {
    const float2 x = unpack<T>(*reinterpret_cast<const std::uint32_t*>(a + i)),
                 y = unpack<T>(*reinterpret_cast<const std::uint32_t*>(b + i));
    sum += x.x * y.x + x.y * y.y;
  }
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  return sum;
}

}  // namespace flashmask::cuda
