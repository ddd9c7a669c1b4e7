#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/compiler.h"
#include "cpu/exp2_polynomial.h"
#include "cpu/half.h"

namespace flashmask::cpu {

/// The vocabulary of the kernels in portable C++: four lanes a vector, so that any compiler can use what it has.
/// Every instruction set offers the same names; what a name means is said here.
struct Scalar {
  static constexpr int lanes = 4;
  static constexpr int row_block = 4;  ///< rows of a register tile
  static constexpr int vectors = 2;    ///< vectors of a register tile

  struct Vec {
    float lane[lanes];
  };

  /// The unit of a reduction: `step` neighbouring elements that one dot() multiplies.
  using Unit = float;
  static constexpr int step = 1;

  struct FlushDenormals {};

  static FLASHMASK_INLINE Vec broadcast(float x) { return {{x, x, x, x}}; }
  static FLASHMASK_INLINE Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static FLASHMASK_INLINE void store(float* p, Vec x) { std::memcpy(p, x.lane, sizeof x.lane); }

  static FLASHMASK_INLINE Vec add(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static FLASHMASK_INLINE Vec sub(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static FLASHMASK_INLINE Vec mul(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  /// a · b + c
  static FLASHMASK_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static FLASHMASK_INLINE Vec max(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  /// The sum of all lanes, halves added to halves.
  static FLASHMASK_INLINE float sum(Vec x) { return (x.lane[0] + x.lane[2]) + (x.lane[1] + x.lane[3]); }
  /// Lane i is x where bit i is set, otherwise y.
  static FLASHMASK_INLINE Vec select(std::uint64_t bits, Vec x, Vec y) {
    return each([&](int i) { return (bits >> i & 1) != 0 ? x.lane[i] : y.lane[i]; });
  }
  /// Bit i is set where a > b.
  static FLASHMASK_INLINE std::uint64_t greater(Vec a, Vec b) {
    std::uint64_t bits = 0;
    for (int i = 0; i < lanes; ++i) bits |= static_cast<std::uint64_t>(a.lane[i] > b.lane[i]) << i;
    return bits;
  }

  /// 2^x to 2 units in the last place; exactly 0 for −inf, never a clamp from below that leaves something.
  static FLASHMASK_INLINE Vec exp2(Vec x) {
    return each([&](int i) { return exp2_lane(x.lane[i]); });
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
    return each([&](int i) { return widen_one(p[i]); });
  }
  /// The first `count` elements, zeros after them; nothing past them is read.
  template <class In>
  static FLASHMASK_INLINE Vec widen_tail(const In* p, int count) {
    return each([&](int i) { return i < count ? widen_one(p[i]) : 0.0f; });
  }
  template <class Out>
  static FLASHMASK_INLINE void narrow(Out* p, Vec x) {
    for (int i = 0; i < lanes; ++i) narrow_one(p + i, x.lane[i]);
  }
  template <class Out>
  static FLASHMASK_INLINE void narrow_tail(Out* p, Vec x, int count) {
    for (int i = 0; i < count; ++i) narrow_one(p + i, x.lane[i]);
  }

  /// Hides from the compiler what a value is.
  static FLASHMASK_INLINE void make_opaque(Vec& x) { asm volatile("" : "+m"(x)); }

  /// lanes × lanes units, dst[c][r] = src[r][c].
  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    for (int r = 0; r < lanes; ++r)
      for (int c = 0; c < lanes; ++c) dst[c * dst_stride + r] = src[r * src_stride + c];
  }

 private:
  template <class F>
  static FLASHMASK_INLINE Vec each(F&& f) {
    Vec out;
    for (int i = 0; i < lanes; ++i) out.lane[i] = f(i);
    return out;
  }
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
  static FLASHMASK_INLINE float exp2_lane(float x) {
    if (x != x) return x;
    const float clamped = x < -127.0f ? -127.0f : (x > 128.0f ? 128.0f : x);
    const float whole = __builtin_floorf(clamped);
    const float f = clamped - whole;
    float y = kExp2Degree5[4];
    for (int k = 3; k >= 0; --k) y = y * f + kExp2Degree5[k];
    return (y * f + 1.0f) * from_bits(static_cast<std::uint32_t>(static_cast<std::int32_t>(whole) + 127) << 23);
  }
};

}  // namespace flashmask::cpu
