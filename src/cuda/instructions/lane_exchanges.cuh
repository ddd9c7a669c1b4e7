// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"

/// Exchanges between the lanes of a warp, by which lanes share words that each made or loaded for itself.
namespace flashmask::cuda {

/// In each byte of the eight lanes that are 4 apart, bit i of lane j changes places with bit j of lane i.
__device__ __forceinline__ std::uint32_t transpose_bytes(std::uint32_t word) {
  const unsigned lane = lane_index();
#pragma unroll
  for (unsigned half = 4; half != 0; half /= 2) {
    const std::uint32_t low = half == 4 ? 0x0F0F0F0FU : half == 2 ? 0x33333333U : 0x55555555U;
    const bool upper = (lane & 4 * half) != 0;
    const std::uint32_t sent = __funnelshift_l(word, word, upper ? half : 32 - half);
    const std::uint32_t received = __shfl_xor_sync(~0U, sent, 4 * half), own = upper ? ~low : low;
    word = (word & own) | (received & ~own);
  }
  return word;
}

/// Between lanes kDistance apart, the upper half of the lower lane's word changes places with the lower half of the
/// upper lane's.
template <int kDistance>
__device__ __forceinline__ std::uint32_t exchange_halves(std::uint32_t word) {
  const std::uint32_t other = __shfl_xor_sync(~0U, word, kDistance);
  return __byte_perm(word, other, (lane_index() & kDistance) != 0 ? 0x3276 : 0x5410);
}

/// In four lanes that are kDistance apart, byte i of lane j changes places with byte j of lane i.
template <int kDistance>
__device__ __forceinline__ std::uint32_t exchange_bytes(std::uint32_t word) {
  const std::uint32_t other = __shfl_xor_sync(~0U, word, kDistance);
  word = __byte_perm(word, other, (lane_index() & kDistance) != 0 ? 0x3715 : 0x6240);
  return exchange_halves<2 * kDistance>(word);
}

/// Between lanes kDistance apart, bit 2 i + 1 of the lower lane's word changes places with bit 2 i of the upper lane's.
template <int kDistance>
__device__ __forceinline__ std::uint32_t exchange_bits(std::uint32_t word) {
  const bool upper = (lane_index() & kDistance) != 0;
  const std::uint32_t received = __shfl_xor_sync(~0U, __funnelshift_l(word, word, upper ? 1 : 31), kDistance);
  const std::uint32_t own = upper ? 0xAAAAAAAAU : 0x55555555U;
  return (word & own) | (received & ~own);
}

template <int kDistance>
__device__ __forceinline__ void exchange_in_quad(std::uint32_t& low, std::uint32_t& high, int quad) {
  const bool upper = (quad & kDistance) != 0;
  const std::uint32_t received = __shfl_xor_sync(~0U, upper ? low : high, kDistance);
  (upper ? low : high) = received;
}

/// words[i] of thread t becomes words[t] of thread i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int quad) {
  exchange_in_quad<1>(words[0], words[1], quad);
  exchange_in_quad<1>(words[2], words[3], quad);
  exchange_in_quad<2>(words[0], words[2], quad);
  exchange_in_quad<2>(words[1], words[3], quad);
}

}  // namespace flashmask::cuda
