// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the standard library's headers, and for CUDA's, where NVRTC compiles kernels: it has none of them. Each
// of their names includes this file (cmake/EmbedHeaders.cmake).

#define INFINITY __int_as_float(0x7f800000)
#define __builtin_inff() INFINITY

namespace std {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long long;
using size_t = decltype(sizeof(0));
using uintptr_t = unsigned long long;

template <bool kFirst, class First, class Second>
struct conditional {
  using type = First;
};
template <class First, class Second>
struct conditional<false, First, Second> {
  using type = Second;
};
template <bool kFirst, class First, class Second>
using conditional_t = typename conditional<kFirst, First, Second>::type;

template <bool kValue>
struct bool_constant {
  static constexpr bool value = kValue;
  constexpr operator bool() const { return kValue; }
};
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class, class>
inline constexpr bool is_same_v = false;
template <class T>
inline constexpr bool is_same_v<T, T> = true;

template <class>
inline constexpr bool is_reference_v = false;
template <class T>
inline constexpr bool is_reference_v<T&> = true;

}  // namespace std

/// The types that name 16-bit elements; kernels convert them by instructions.
struct __nv_bfloat16 {
  std::uint16_t word;
  __device__ explicit operator float() const { return __uint_as_float(static_cast<unsigned>(word) << 16); }
};
struct __half {
  std::uint16_t word;
  __device__ explicit operator float() const {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(word));
    return number;
  }
};
struct __half2 {
  __half x, y;
};
__device__ inline float2 __half22float2(__half2 pair) {
  return {static_cast<float>(pair.x), static_cast<float>(pair.y)};
}

/// What the copy engine reads: the driver makes it, and kernels only pass its address on.
struct alignas(128) CUtensorMap {
  std::uint64_t words[16];
};
