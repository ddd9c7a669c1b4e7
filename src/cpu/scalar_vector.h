// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/compiler.h"
#include "cpu/exp2_polynomial.h"
#include "cpu/half.h"

namespace flashmask::cpu {

/// The vector operations of the kernels in portable C++: four lanes per vector, so that any compiler can use what it
/// has. Every instruction set offers the same names; what a name means is documented here.
struct Scalar {
  /// One Philox counter; see dropout_words.h.
  struct Counters {
    static constexpr int lanes = 1;
    using Vec = std::uint64_t;

    static FLASHMASK_INLINE Vec broadcast(std::uint32_t x) { return x; }
    static FLASHMASK_INLINE Vec load(const std::uint32_t* x) { return *x; }
    static FLASHMASK_INLINE Vec multiply(Vec x, Vec y) { return (x & 0xffffffffu) * (y & 0xffffffffu); }
    static FLASHMASK_INLINE Vec high_half(Vec x) { return x >> 32; }
    static FLASHMASK_INLINE Vec xor_of(Vec x, Vec y, Vec z) { return x ^ y ^ z; }

    /// Bit k: the k-th 16-bit number is at least `threshold`.
    static FLASHMASK_INLINE std::uint64_t at_least(Vec x0, Vec x1, Vec x2, Vec x3, std::uint32_t threshold) {
      return pair(x0, threshold) | pair(x1, threshold) << 2 | pair(x2, threshold) << 4 | pair(x3, threshold) << 6;
    }

   private:
    static FLASHMASK_INLINE std::uint64_t pair(Vec x, std::uint32_t threshold) {
      return ((x & 0xffffu) >= threshold ? 1u : 0u) | ((x >> 16 & 0xffffu) >= threshold ? 2u : 0u);
    }
  };

  static constexpr int lanes = 4;
  static constexpr int row_block = 4;  ///< rows of a register tile
  static constexpr int vectors = 2;    ///< vectors of a register tile

  /// The compiler's own vectors: it emulates what the processor lacks.
  using Vec = float __attribute__((vector_size(16)));
  using Int = std::int32_t __attribute__((vector_size(16)));

  /// The unit of a reduction: `step` neighbouring elements that one dot() multiplies.
  using Unit = float;
  static constexpr int step = 1;

  struct FlushDenormals {};

  static FLASHMASK_INLINE Vec broadcast(float x) { return Vec{x, x, x, x}; }
  static FLASHMASK_INLINE Vec load(const float* p) {
    Vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static FLASHMASK_INLINE void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }

  static FLASHMASK_INLINE Vec add(Vec a, Vec b) { return a + b; }
  static FLASHMASK_INLINE Vec sub(Vec a, Vec b) { return a - b; }
  static FLASHMASK_INLINE Vec mul(Vec a, Vec b) { return a * b; }
  static FLASHMASK_INLINE Vec div(Vec a, Vec b) { return a / b; }
  /// a · b + c
  static FLASHMASK_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  /// Both return b where one is NaN.
  static FLASHMASK_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static FLASHMASK_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
  /// The sum of all lanes, halves added to halves.
  static FLASHMASK_INLINE float sum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  /// Lane i is x where bit i is set, otherwise y.
  static FLASHMASK_INLINE Vec select(std::uint64_t bits, Vec x, Vec y) {
    const auto word = static_cast<std::int32_t>(bits & 0xf);
    return ((Int{word, word, word, word} & Int{1, 2, 4, 8}) != 0) ? x : y;
  }
  /// Bit i is set where a > b.
  static FLASHMASK_INLINE std::uint64_t greater(Vec a, Vec b) {
    const Int bits = (a > b) & Int{1, 2, 4, 8};
    return static_cast<std::uint64_t>(bits[0] | bits[1] | bits[2] | bits[3]);
  }

  /// 2^x to 2 units in the last place (to 2.9e-6 in Avx512Bf16); exactly 0 for −inf: a lower clamp must leave nothing
  /// over.
  static FLASHMASK_INLINE Vec exp2(Vec x) {
    const Vec low = broadcast(-127.0f), high = broadcast(128.0f);
    Vec clamped = x < low ? low : (x > high ? high : x);
    clamped = x == x ? clamped : broadcast(0.0f);  // NaN has no exponent; it comes back at the end
    Int whole = __builtin_convertvector(clamped, Int);
    whole += __builtin_convertvector(whole, Vec) > clamped;  // truncated → floor: true is −1
    const Vec f = clamped - __builtin_convertvector(whole, Vec);
    Vec y = broadcast(kExp2Degree5[4]);
    for (int k = 3; k >= 0; --k) y = y * f + broadcast(kExp2Degree5[k]);
    const Int exponent = (whole + 127) << 23;
    Vec power;
    std::memcpy(&power, &exponent, sizeof power);
    return x == x ? (y * f + broadcast(1.0f)) * power : x;
  }

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return load(p); }
  static FLASHMASK_INLINE Vec broadcast_unit(const Unit* p) { return broadcast(*p); }
  /// acc + Σ over the unit's elements of a · b
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }

  /// Stores neighbouring rows so that a reduction over rows finds its units: [row / step][lane].
  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t stride, Vec x0, Vec x1) {
    store(p, x0);
    store(p + stride, x1);
  }

  static FLASHMASK_INLINE float widen_one(float x) { return x; }
  static FLASHMASK_INLINE float widen_one(Bf16 x) { return from_bits(static_cast<std::uint32_t>(x.bits) << 16); }
  static FLASHMASK_INLINE float widen_one(F16 x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = x.bits & 0x7fffu;
    // Scaling by 2^112 moves the exponent bias from 15 to 127 and makes subnormals normal.
    const float scaled = from_bits(magnitude << 13) * 0x1p112f;
    const float value = magnitude >= 0x7c00u ? from_bits(0x7f800000u | magnitude << 13) : scaled;
    return from_bits(to_bits(value) | sign);
  }
  static FLASHMASK_INLINE void narrow_one(float* p, float x) { *p = x; }
  static FLASHMASK_INLINE void narrow_one(Bf16* p, float x) {
    const std::uint32_t bits = to_bits(x);
    const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    p->bits = static_cast<std::uint16_t>(x != x ? (bits >> 16 | 0x40u) : rounded);
  }
  static FLASHMASK_INLINE void narrow_one(F16* p, float x) {
    const std::uint32_t sign = to_bits(x) >> 16 & 0x8000u;
    const float magnitude = from_bits(to_bits(x) & 0x7fffffffu);
    std::uint32_t half;
    if (x != x) {
      half = 0x7e00u;
    } else if (magnitude >= 65520.0f) {
      half = 0x7c00u;
    } else if (magnitude < 0x1p-14f) {
      // Adding 0.5 puts the last subnormal bit of a half at the last bit of the float's mantissa.
      half = to_bits(magnitude + 0.5f) - to_bits(0.5f);
    } else {
      const std::uint32_t bits = to_bits(magnitude) - (112u << 23);
      half = (bits + 0xfffu + (bits >> 13 & 1)) >> 13;
    }
    p->bits = static_cast<std::uint16_t>(sign | half);
  }

  template <class In>
  static FLASHMASK_INLINE Vec widen(const In* p) {
    return Vec{widen_one(p[0]), widen_one(p[1]), widen_one(p[2]), widen_one(p[3])};
  }
  /// The first `count` elements, zeros after them; nothing past them is read.
  template <class In>
  static FLASHMASK_INLINE Vec widen_tail(const In* p, int count) {
    Vec x = broadcast(0.0f);
    for (int i = 0; i < count; ++i) x[i] = widen_one(p[i]);
    return x;
  }
  template <class Out>
  static FLASHMASK_INLINE void narrow(Out* p, Vec x) {
    for (int i = 0; i < lanes; ++i) narrow_one(p + i, x[i]);
  }
  template <class Out>
  static FLASHMASK_INLINE void narrow_tail(Out* p, Vec x, int count) {
    for (int i = 0; i < count; ++i) narrow_one(p + i, x[i]);
  }
  /// narrow() that bypasses the caches, where the instruction set can; neighbouring vectors must fill whole cache
  /// lines.
  template <class Out>
  static FLASHMASK_INLINE void narrow_past_caches(Out* p, Vec x) {
    narrow(p, x);
  }
  /// Orders earlier writes that bypassed the caches before later writes.
  static FLASHMASK_INLINE void fence() {}

  /// Hides a value from the compiler.
  static FLASHMASK_INLINE void make_opaque(Vec& x) { asm volatile("" : "+m"(x)); }

  /// Transposes lanes × lanes units: dst[c][r] = src[r][c].
  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    for (int r = 0; r < lanes; ++r)
      for (int c = 0; c < lanes; ++c) dst[c * dst_stride + r] = src[r * src_stride + c];
  }

 private:
  static FLASHMASK_INLINE std::uint32_t to_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static FLASHMASK_INLINE float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
};

}  // namespace flashmask::cpu
