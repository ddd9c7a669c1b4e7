// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the product's file of this name where kernels are compiled for a CPU.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "kit/rounding.h"

namespace flashmask::cuda {

inline int lane_index() { return static_cast<int>(threadIdx.x % 32); }

inline unsigned thread_index() { return threadIdx.x; }

inline void prefetch_line(const void*) {}

inline std::uint32_t shared_address(const void* pointer) { return emulator::shared_address(pointer); }

inline std::uint32_t load_word(std::uint32_t address) {
  std::uint32_t word;
  emulator::read_shared(&word, address, sizeof(word));
  return word;
}

inline std::uint32_t bits_from(int begin, int count) {
  const auto low = [](std::uint32_t bits) { return bits >= 32 ? ~0U : (1U << bits) - 1; };
  const auto first = static_cast<std::uint32_t>(begin);
  return first >= 32 ? 0 : low(static_cast<std::uint32_t>(count)) << first;
}

inline std::uint32_t spread_tops(std::uint32_t word, std::uint32_t selectors) {
  std::uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i)
    if ((word >> (selectors >> 4 * i & 3) * 8 & 0x80) != 0) bytes |= 255U << 8 * i;
  return bytes;
}

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float log2_approximate(float x) { return std::log2(x); }
inline float reciprocal_approximate(float x) { return 1 / x; }

template <class T>
std::uint16_t to_word(float x);
template <>
inline std::uint16_t to_word<__nv_bfloat16>(float x) {
  return check::to_bf16(x);
}
template <>
inline std::uint16_t to_word<__half>(float x) {
  return check::to_f16(x);
}

template <class T>
float from_word(std::uint16_t word);
template <>
inline float from_word<__nv_bfloat16>(std::uint16_t word) {
  return check::from_bf16(word);
}
template <>
inline float from_word<__half>(std::uint16_t word) {
  return check::from_f16(word);
}

template <class T>
std::uint32_t pack(float low, float high) {
  return to_word<T>(low) | static_cast<std::uint32_t>(to_word<T>(high)) << 16;
}

template <class T>
float2 unpack(std::uint32_t packed) {
  return {from_word<T>(static_cast<std::uint16_t>(packed)), from_word<T>(static_cast<std::uint16_t>(packed >> 16))};
}

template <class Memory>
Memory& shared_memory() {
  return *static_cast<Memory*>(emulator::shared_memory(sizeof(Memory)));
}

}  // namespace flashmask::cuda
