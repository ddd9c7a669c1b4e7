// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/x86/avx2_vector.h"

namespace flashmask::cpu {

/// AVX-512 F, BW, DQ, VL: an 8 × 32 register tile has the 16 accumulators that cover the latency of the multiply-add
/// and leaves half the registers to the epilogue.
struct Avx512 {
  /// Eight Philox counters; see dropout_words.h.
  struct Counters {
    static constexpr int lanes = 8;
    using Vec = __m512i;

    static FLASHMASK_INLINE Vec broadcast(std::uint32_t x) { return _mm512_set1_epi64(x); }
    /// Loads the first four counters into the even lanes, as at_least() gives the bits of even lanes first.
    static FLASHMASK_INLINE Vec load(const std::uint32_t* x) {
      const Vec in_order = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
      return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), in_order);
    }
    static FLASHMASK_INLINE Vec multiply(Vec x, Vec y) { return _mm512_mul_epu32(x, y); }
    static FLASHMASK_INLINE Vec high_half(Vec x) { return _mm512_srli_epi64(x, 32); }
    static FLASHMASK_INLINE Vec xor_of(Vec x, Vec y, Vec z) { return _mm512_ternarylogic_epi64(x, y, z, 0x96); }

    /// Bit 8 i + k: the k-th 16-bit number of counter i is at least `threshold`.
    static FLASHMASK_INLINE std::uint64_t at_least(Vec x0, Vec x1, Vec x2, Vec x3, std::uint32_t threshold) {
      const Vec least = _mm512_set1_epi16(static_cast<short>(threshold));
      const Vec front = joined(x0, x1), back = joined(x2, x3);
      const std::uint64_t even = _mm512_cmpge_epu16_mask(_mm512_unpacklo_epi64(front, back), least);
      const std::uint64_t odd = _mm512_cmpge_epu16_mask(_mm512_unpackhi_epi64(front, back), least);
      return even | odd << 32;
    }

   private:
    /// Joins the low halves side by side.
    static FLASHMASK_INLINE Vec joined(Vec low, Vec high) {
      return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(high, 32));
    }
  };

  static constexpr int lanes = 16;
  static constexpr int row_block = 8;
  static constexpr int vectors = 2;

  using Vec = __m512;
  using Unit = float;
  static constexpr int step = 1;
  using FlushDenormals = FlushDenormalsX86;

  static FLASHMASK_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
  static FLASHMASK_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static FLASHMASK_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static FLASHMASK_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static FLASHMASK_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static FLASHMASK_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static FLASHMASK_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static FLASHMASK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static FLASHMASK_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static FLASHMASK_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static FLASHMASK_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  static FLASHMASK_INLINE Vec select(std::uint64_t bits, Vec x, Vec y) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), y, x);
  }
  static FLASHMASK_INLINE std::uint64_t greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

  static FLASHMASK_INLINE Vec exp2(Vec x) {
    const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec y = fma(broadcast(kExp2Degree5[4]), f, broadcast(kExp2Degree5[3]));
    y = fma(y, f, broadcast(kExp2Degree5[2]));
    y = fma(y, f, broadcast(kExp2Degree5[1]));
    y = fma(y, f, broadcast(kExp2Degree5[0]));
    y = fma(y, f, broadcast(1.0f));
    return _mm512_scalef_ps(y, x);
  }

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return load(p); }
  static FLASHMASK_INLINE Vec broadcast_unit(const Unit* p) { return _mm512_set1_ps(*p); }
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }

  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t stride, Vec x0, Vec x1) {
    store(p, x0);
    store(p + stride, x1);
  }

  static FLASHMASK_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1); }

  static FLASHMASK_INLINE Vec widen(const float* p) { return load(p); }
  static FLASHMASK_INLINE Vec widen(const Bf16* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static FLASHMASK_INLINE Vec widen(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static FLASHMASK_INLINE Vec widen_tail(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
  static FLASHMASK_INLINE Vec widen_tail(const Bf16* p, int count) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(count), p));
  }
  static FLASHMASK_INLINE Vec widen_tail(const F16* p, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p));
  }

  static FLASHMASK_INLINE void narrow(float* p, Vec x) { store(p, x); }
  static FLASHMASK_INLINE void narrow_tail(float* p, Vec x, int count) { _mm512_mask_storeu_ps(p, first(count), x); }
  template <class Half>
  static FLASHMASK_INLINE void narrow(Half* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_half(x, Half{}));
  }
  template <class Half>
  static FLASHMASK_INLINE void narrow_tail(Half* p, Vec x, int count) {
    _mm256_mask_storeu_epi16(p, first(count), to_half(x, Half{}));
  }

  static FLASHMASK_INLINE void narrow_past_caches(float* p, Vec x) { _mm512_stream_ps(p, x); }
  template <class Half>
  static FLASHMASK_INLINE void narrow_past_caches(Half* p, Vec x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_half(x, Half{}));
  }
  static FLASHMASK_INLINE void fence() { _mm_sfence(); }

  static FLASHMASK_INLINE void make_opaque(Vec& x) { asm volatile("" : "+v"(x)); }

  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    // Loads put four rows side by side, so that only pieces of 4 × 4 are left to transpose in registers.
    for (int c = 0; c < 16; c += 4) {
      __m512 r[4];
      for (int i = 0; i < 4; ++i) {
        const float* const row = src + i * src_stride + c;
        const std::int64_t next = 4 * src_stride;
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(row));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x00f0, _mm_loadu_ps(row + next));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x0f00, _mm_loadu_ps(row + 2 * next));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0xf000, _mm_loadu_ps(row + 3 * next));
      }
      const __m512 low01 = _mm512_unpacklo_ps(r[0], r[1]), high01 = _mm512_unpackhi_ps(r[0], r[1]);
      const __m512 low23 = _mm512_unpacklo_ps(r[2], r[3]), high23 = _mm512_unpackhi_ps(r[2], r[3]);
      store(dst + c * dst_stride, _mm512_shuffle_ps(low01, low23, 0x44));
      store(dst + (c + 1) * dst_stride, _mm512_shuffle_ps(low01, low23, 0xee));
      store(dst + (c + 2) * dst_stride, _mm512_shuffle_ps(high01, high23, 0x44));
      store(dst + (c + 3) * dst_stride, _mm512_shuffle_ps(high01, high23, 0xee));
    }
  }

 private:
  static FLASHMASK_INLINE Vec widen_bf16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static FLASHMASK_INLINE __m256i to_half(Vec x, Bf16) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i out = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16));
  }
  static FLASHMASK_INLINE __m256i to_half(Vec x, F16) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
};

}  // namespace flashmask::cpu
