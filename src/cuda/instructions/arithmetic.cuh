// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// Instructions of every GPU since sm_80 that C++ has no name for.
namespace flashmask::cuda {

/// The thread's number in its warp. Read at each use: held in a register over a whole kernel, it would make others
/// spill.
__device__ __forceinline__ int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// The thread's number in its block, also read at each use.
__device__ __forceinline__ unsigned thread_index() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Asks for the 128 bytes around a place in global memory to be brought to the L1 cache.
__device__ __forceinline__ void prefetch_line(const void* place) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(place));
}

/// Converts a pointer into shared memory to the 32-bit address that instructions take.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Reads a word of shared memory.
__device__ __forceinline__ std::uint32_t load_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

/// Returns a word with bits begin … begin + count − 1 set; bits past 31 are left out. Neither argument is below 0.
__device__ __forceinline__ std::uint32_t bits_from(int begin, int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(begin), "r"(count));
  return bits;
}

/// Byte i is 255 where byte (selectors >> 4 i) % 4 of the word has its highest bit set, else 0.
__device__ __forceinline__ std::uint32_t spread_tops(std::uint32_t word, std::uint32_t selectors) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(bytes) : "r"(word), "r"(selectors | 0x8888));
  return bytes;
}

/// 2^x, 0 for −inf.
__device__ __forceinline__ float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// log₂ x, −inf for 0, right to 2^−22 of the result or of 1, whichever is larger.
__device__ __forceinline__ float log2_approximate(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / x to 2^−23 of the result, 0 for infinity.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Rounds two numbers to T and packs them into one word, `low` in its low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Returns the two numbers that pack() put into a word.
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t packed);

template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xFFFF0000U)};
}

template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t packed) {
  return __half22float2(reinterpret_cast<const __half2&>(packed));
}

/// Returns the block's shared memory.
template <class Memory>
__device__ __forceinline__ Memory& shared_memory() {
  extern __shared__ uint4 memory_of_block[];
  return *reinterpret_cast<Memory*>(memory_of_block);
}

}  // namespace flashmask::cuda
