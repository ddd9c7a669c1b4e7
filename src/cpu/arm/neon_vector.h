// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/scalar_vector.h"

namespace flashmask::cpu {

/// Saves the floating-point mode, flushes denormals to zero, restores on exit.
struct FlushDenormalsArm {
  FLASHMASK_INLINE FlushDenormalsArm() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | 1u << 24) : "memory");
  }
  FLASHMASK_INLINE ~FlushDenormalsArm() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
  FlushDenormalsArm(const FlushDenormalsArm&) = delete;
  FlushDenormalsArm& operator=(const FlushDenormalsArm&) = delete;

 private:
  std::uint64_t saved_;
};

/// Advanced SIMD, which every 64-bit ARM processor has: 32 registers hold a 6 × 16 register tile.
struct Neon {
  /// Four Philox counters; see dropout_words.h. The halves of a 64-bit lane lie in a register each.
  struct Counters {
    static constexpr int lanes = 4;
    struct Vec {
      uint32x4_t low, high;
    };

    static FLASHMASK_INLINE Vec broadcast(std::uint32_t x) { return {vdupq_n_u32(x), vdupq_n_u32(0)}; }
    static FLASHMASK_INLINE Vec load(const std::uint32_t* x) { return {vld1q_u32(x), vdupq_n_u32(0)}; }
    static FLASHMASK_INLINE Vec multiply(Vec x, Vec y) {
      const uint32x4_t front = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x.low), vget_low_u32(y.low)));
      const uint32x4_t back = vreinterpretq_u32_u64(vmull_high_u32(x.low, y.low));
      return {vuzp1q_u32(front, back), vuzp2q_u32(front, back)};
    }
    static FLASHMASK_INLINE Vec high_half(Vec x) { return {x.high, vdupq_n_u32(0)}; }
    static FLASHMASK_INLINE Vec xor_of(Vec x, Vec y, Vec z) {
      return {veorq_u32(veorq_u32(x.low, y.low), z.low), vdupq_n_u32(0)};
    }

    /// Bit 8 i + k: the k-th 16-bit number of counter i is at least `threshold`.
    static FLASHMASK_INLINE std::uint64_t at_least(Vec x0, Vec x1, Vec x2, Vec x3, std::uint32_t threshold) {
      const uint16x8_t least = vdupq_n_u16(static_cast<std::uint16_t>(threshold));
      const uint8x16_t front = reaches(vzip1q_u32(x0.low, x1.low), vzip1q_u32(x2.low, x3.low), least);
      const uint8x16_t back = reaches(vzip2q_u32(x0.low, x1.low), vzip2q_u32(x2.low, x3.low), least);
      const uint8x16_t fours = vpaddq_u8(vpaddq_u8(front, back), front);
      return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(fours, fours)), 0);
    }

   private:
    /// Compares the 16 numbers of two counters, whose first four each lie in `x` and whose last four in `y`: byte
    /// 8 i + k is 2^k where number k of counter i is at least `least`.
    static FLASHMASK_INLINE uint8x16_t reaches(uint32x4_t x, uint32x4_t y, uint16x8_t least) {
      const uint64x2_t first_four = vreinterpretq_u64_u32(x), last_four = vreinterpretq_u64_u32(y);
      const uint16x8_t counter0 = vcgeq_u16(vreinterpretq_u16_u64(vzip1q_u64(first_four, last_four)), least);
      const uint16x8_t counter1 = vcgeq_u16(vreinterpretq_u16_u64(vzip2q_u64(first_four, last_four)), least);
      const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
      return vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(counter0), vreinterpretq_u8_u16(counter1)), bit);
    }
  };

  static constexpr int lanes = 4;
  static constexpr int row_block = 6;
  static constexpr int vectors = 4;

  using Vec = float32x4_t;
  using Unit = float;
  static constexpr int step = 1;
  using FlushDenormals = FlushDenormalsArm;

  static FLASHMASK_INLINE Vec broadcast(float x) { return vdupq_n_f32(x); }
  static FLASHMASK_INLINE Vec load(const float* p) { return vld1q_f32(p); }
  static FLASHMASK_INLINE void store(float* p, Vec x) { vst1q_f32(p, x); }
  static FLASHMASK_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static FLASHMASK_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static FLASHMASK_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static FLASHMASK_INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static FLASHMASK_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  // Not FMAX and FMIN, which return a NaN where either operand is one.
  static FLASHMASK_INLINE Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static FLASHMASK_INLINE Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static FLASHMASK_INLINE float sum(Vec x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }
  static FLASHMASK_INLINE Vec select(std::uint64_t bits, Vec x, Vec y) {
    return vbslq_f32(vtstq_u32(vdupq_n_u32(static_cast<std::uint32_t>(bits)), lane_bit()), x, y);
  }
  static FLASHMASK_INLINE std::uint64_t greater(Vec a, Vec b) {
    return vaddvq_u32(vandq_u32(vcgtq_f32(a, b), lane_bit()));
  }

  static FLASHMASK_INLINE Vec exp2(Vec x) {
    x = vminq_f32(broadcast(128.0f), vmaxq_f32(broadcast(-127.0f), x));  // these let NaN through
    const Vec whole = vrndmq_f32(x);
    const Vec f = sub(x, whole);
    Vec y = fma(broadcast(kExp2Degree5[4]), f, broadcast(kExp2Degree5[3]));
    y = fma(y, f, broadcast(kExp2Degree5[2]));
    y = fma(y, f, broadcast(kExp2Degree5[1]));
    y = fma(y, f, broadcast(kExp2Degree5[0]));
    y = fma(y, f, broadcast(1.0f));
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127));
    return mul(y, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
  }

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return load(p); }
  /// One number, which the multiply-add takes from a register's first lane: copying it to all would be an instruction
  /// of the units that multiply.
  static FLASHMASK_INLINE float broadcast_unit(const Unit* p) { return *p; }
  static FLASHMASK_INLINE Vec dot(Vec acc, float a, Vec b) { return vfmaq_n_f32(acc, b, a); }
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }

  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t stride, Vec x0, Vec x1) {
    store(p, x0);
    store(p + stride, x1);
  }

  static FLASHMASK_INLINE Vec widen(const float* p) { return load(p); }
  static FLASHMASK_INLINE Vec widen(const Bf16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
  }
  static FLASHMASK_INLINE Vec widen(const F16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
  static FLASHMASK_INLINE void narrow(float* p, Vec x) { store(p, x); }
  static FLASHMASK_INLINE void narrow(Bf16* p, Vec x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(&p->bits, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  static FLASHMASK_INLINE void narrow(F16* p, Vec x) { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
  template <class In>
  static FLASHMASK_INLINE Vec widen_tail(const In* p, int count) {
    In whole[lanes] = {};
    std::memcpy(whole, p, static_cast<std::size_t>(count) * sizeof(In));
    return widen(whole);
  }
  template <class Out>
  static FLASHMASK_INLINE void narrow_tail(Out* p, Vec x, int count) {
    Out whole[lanes];
    narrow(whole, x);
    std::memcpy(p, whole, static_cast<std::size_t>(count) * sizeof(Out));
  }

  template <class Out>
  static FLASHMASK_INLINE void narrow_past_caches(Out* p, Vec x) {
    narrow(p, x);
  }
  static FLASHMASK_INLINE void fence() {}

  static FLASHMASK_INLINE void make_opaque(Vec& x) { asm volatile("" : "+w"(x)); }

  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    const Vec r0 = load(src), r1 = load(src + src_stride);
    const Vec r2 = load(src + 2 * src_stride), r3 = load(src + 3 * src_stride);
    const Vec even01 = vtrn1q_f32(r0, r1), odd01 = vtrn2q_f32(r0, r1);
    const Vec even23 = vtrn1q_f32(r2, r3), odd23 = vtrn2q_f32(r2, r3);
    store(dst, low_pairs(even01, even23));
    store(dst + dst_stride, low_pairs(odd01, odd23));
    store(dst + 2 * dst_stride, high_pairs(even01, even23));
    store(dst + 3 * dst_stride, high_pairs(odd01, odd23));
  }

 private:
  static FLASHMASK_INLINE uint32x4_t lane_bit() { return uint32x4_t{1, 2, 4, 8}; }
  static FLASHMASK_INLINE Vec low_pairs(Vec x, Vec y) {
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  }
  static FLASHMASK_INLINE Vec high_pairs(Vec x, Vec y) {
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  }
};

}  // namespace flashmask::cpu
