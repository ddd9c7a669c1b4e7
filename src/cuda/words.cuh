#pragma once

#include <cstdint>

/// Bits in words of 32, as many as a warp has lanes.
namespace flashmask::cuda {

constexpr unsigned kAllLanes = ~0U;

__host__ __device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

/// The first `count` bits of a word; all where it is 32 or more, none where it is 0 or less.
__device__ __forceinline__ std::uint32_t low_word(int count) {
  return count >= 32 ? ~0U : count <= 0 ? 0 : (1U << count) - 1;
}

}  // namespace flashmask::cuda
