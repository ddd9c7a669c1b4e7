// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for CUDA's header of this name where kernels are compiled for a CPU: the words of the language, and what
// threads of a warp do together (machine.h).

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator/machine.h"

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using cudaStream_t = void*;

using flashmask::emulator::blockIdx;
using flashmask::emulator::gridDim;
using flashmask::emulator::threadIdx;

using std::max;
using std::min;

inline void __syncthreads() { flashmask::emulator::await_block(); }
inline void __syncwarp() {
  flashmask::emulator::exchange(0, [](int, const auto&) { return 0; });
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return flashmask::emulator::exchange(value, [=](int, const auto& all) { return all[lane & 31]; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return flashmask::emulator::exchange(
      value, [=](int own, const auto& all) { return all[own < distance ? own : own - distance]; });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return flashmask::emulator::exchange(value, [=](int own, const auto& all) { return all[own ^ distance]; });
}
inline unsigned __ballot_sync(unsigned, bool own) {
  return flashmask::emulator::exchange(own, [](int, const auto& all) {
    unsigned word = 0;
    for (int lane = 0; lane < 32; ++lane) word |= static_cast<unsigned>(all[lane]) << lane;
    return word;
  });
}
inline bool __any_sync(unsigned lanes, bool own) { return __ballot_sync(lanes, own) != 0; }
inline bool __all_sync(unsigned lanes, bool own) { return __ballot_sync(lanes, own) == ~0U; }
inline int __reduce_add_sync(unsigned, int own) {
  return flashmask::emulator::exchange(own, [](int, const auto& all) {
    int sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += all[lane];
    return sum;
  });
}

inline int __reduce_max_sync(unsigned, int own) {
  return flashmask::emulator::exchange(own,
                                       [](int, const auto& all) { return *std::max_element(all.begin(), all.end()); });
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
inline int atomicAdd(int* to, int more) {
  const int before = *to;
  *to += more;
  return before;
}

inline int atomicMax(int* to, int other) {
  const int before = *to;
  *to = std::max(before, other);
  return before;
}

inline unsigned atomicXor(unsigned* to, unsigned other) {
  const unsigned before = *to;
  *to ^= other;
  return before;
}
inline void __threadfence() {}
inline void __nanosleep(unsigned) { flashmask::emulator::yield(); }

inline int __popc(unsigned word) { return std::popcount(word); }
inline int __ffs(unsigned word) { return word == 0 ? 0 : std::countr_zero(word) + 1; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>(((std::uint64_t{high} << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (by < 32 ? by : 32));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned word = 0;
  for (unsigned i = 0; i < 4; ++i) word |= static_cast<unsigned>(bytes >> (selectors >> 4 * i & 7) * 8 & 255) << 8 * i;
  return word;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __log2f(float x) { return std::log2(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __uint_as_float(unsigned word) { return std::bit_cast<float>(word); }
inline unsigned __float_as_uint(float number) { return std::bit_cast<unsigned>(number); }
