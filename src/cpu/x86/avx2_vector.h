// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/scalar_vector.h"

namespace flashmask::cpu {

/// Saves the floating-point mode, flushes denormals to zero, restores on exit.
struct FlushDenormalsX86 {
  FLASHMASK_INLINE FlushDenormalsX86() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  FLASHMASK_INLINE ~FlushDenormalsX86() { _mm_setcsr(saved_); }
  FlushDenormalsX86(const FlushDenormalsX86&) = delete;
  FlushDenormalsX86& operator=(const FlushDenormalsX86&) = delete;

 private:
  unsigned saved_;
};

/// AVX2, FMA and F16C: 16 registers hold a 6 × 16 register tile.
struct Avx2 {
  /// Four Philox counters; see dropout_words.h.
  struct Counters {
    static constexpr int lanes = 4;
    using Vec = __m256i;

    static FLASHMASK_INLINE Vec broadcast(std::uint32_t x) { return _mm256_set1_epi64x(x); }
    static FLASHMASK_INLINE Vec load(const std::uint32_t* x) {
      return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    }
    static FLASHMASK_INLINE Vec multiply(Vec x, Vec y) { return _mm256_mul_epu32(x, y); }
    static FLASHMASK_INLINE Vec high_half(Vec x) { return _mm256_srli_epi64(x, 32); }
    static FLASHMASK_INLINE Vec xor_of(Vec x, Vec y, Vec z) { return _mm256_xor_si256(_mm256_xor_si256(x, y), z); }

    /// Bit 8 i + k: the k-th 16-bit number of counter i is at least `threshold`.
    static FLASHMASK_INLINE std::uint64_t at_least(Vec x0, Vec x1, Vec x2, Vec x3, std::uint32_t threshold) {
      const Vec least = _mm256_set1_epi16(static_cast<short>(threshold));
      const Vec front = joined(x0, x1), back = joined(x2, x3);
      const Vec even = reaches(_mm256_unpacklo_epi64(front, back), least);
      const Vec odd = reaches(_mm256_unpackhi_epi64(front, back), least);
      return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(even, odd)));
    }

   private:
    /// Joins the low halves side by side.
    static FLASHMASK_INLINE Vec joined(Vec low, Vec high) {
      return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
    }
    static FLASHMASK_INLINE Vec reaches(Vec x, Vec least) { return _mm256_cmpeq_epi16(_mm256_max_epu16(x, least), x); }
  };

  static constexpr int lanes = 8;
  static constexpr int row_block = 6;
  static constexpr int vectors = 2;

  using Vec = __m256;
  using Unit = float;
  static constexpr int step = 1;
  using FlushDenormals = FlushDenormalsX86;

  static FLASHMASK_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
  static FLASHMASK_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static FLASHMASK_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static FLASHMASK_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static FLASHMASK_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static FLASHMASK_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static FLASHMASK_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static FLASHMASK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static FLASHMASK_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static FLASHMASK_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static FLASHMASK_INLINE float sum(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static FLASHMASK_INLINE Vec select(std::uint64_t bits, Vec x, Vec y) {
    const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits & 0xff)), lane_bit);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane_bit)));
  }
  static FLASHMASK_INLINE std::uint64_t greater(Vec a, Vec b) {
    return static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }

  static FLASHMASK_INLINE Vec exp2(Vec x) {
    // The operand order lets NaN through: max and min return their second operand when one is NaN.
    x = _mm256_min_ps(broadcast(128.0f), _mm256_max_ps(broadcast(-127.0f), x));
    const Vec whole = _mm256_floor_ps(x);
    const Vec f = sub(x, whole);
    Vec y = fma(broadcast(kExp2Degree5[4]), f, broadcast(kExp2Degree5[3]));
    y = fma(y, f, broadcast(kExp2Degree5[2]));
    y = fma(y, f, broadcast(kExp2Degree5[1]));
    y = fma(y, f, broadcast(kExp2Degree5[0]));
    y = fma(y, f, broadcast(1.0f));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return load(p); }
  static FLASHMASK_INLINE Vec broadcast_unit(const Unit* p) { return _mm256_broadcast_ss(p); }
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }

  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t stride, Vec x0, Vec x1) {
    store(p, x0);
    store(p + stride, x1);
  }

  static FLASHMASK_INLINE Vec widen(const float* p) { return load(p); }
  static FLASHMASK_INLINE Vec widen(const Bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static FLASHMASK_INLINE Vec widen(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static FLASHMASK_INLINE void narrow(float* p, Vec x) { store(p, x); }
  static FLASHMASK_INLINE void narrow(Bf16* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static FLASHMASK_INLINE void narrow(F16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
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

  static FLASHMASK_INLINE void narrow_past_caches(float* p, Vec x) { _mm256_stream_ps(p, x); }
  template <class Half>
  static FLASHMASK_INLINE void narrow_past_caches(Half* p, Vec x) {
    narrow(p, x);
  }
  static FLASHMASK_INLINE void fence() { _mm_sfence(); }

  static FLASHMASK_INLINE void make_opaque(Vec& x) { asm volatile("" : "+v"(x)); }

  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = load(src + i * src_stride);
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      store(dst + i * dst_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      store(dst + (i + 4) * dst_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
};

}  // namespace flashmask::cpu
