// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Bits in words of 32, as many as a warp has lanes.
namespace flashmask::cuda {

constexpr unsigned kAllLanes = ~0U;

__host__ __device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

/// Returns a word with its low `count` bits set: all if it is 32 or more, none if it is 0 or less.
__device__ __forceinline__ std::uint32_t low_word(int count) {
  return count >= 32 ? ~0U : count <= 0 ? 0 : (1U << count) - 1;
}

/// Transposes 32 × 32 bits in a warp: each lane gives a row and gets a column.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t word) {
  std::uint32_t keep = 0x0000FFFF;
#pragma unroll
  for (int half = 16; half != 0; half /= 2, keep ^= keep << half) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, word, half);
    word = threadIdx.x % 32 & half ? (word & ~keep) | (other >> half & keep) : (word & keep) | (other & keep) << half;
  }
  return word;
}

/// Reorders the bits of 32 columns so that byte q is what lane q of a quad needs: in an accumulator fragment it holds
/// columns 2 q and 2 q + 1 of every eight. The function is its own inverse.
__device__ __forceinline__ std::uint32_t fragment_order(std::uint32_t word) {
  std::uint32_t swap = (word ^ word >> 6) & 0x00CC00CC;
  word ^= swap ^ swap << 6;
  swap = (word ^ word >> 12) & 0x0000F0F0;
  return word ^ swap ^ swap << 12;
}

}  // namespace flashmask::cuda
