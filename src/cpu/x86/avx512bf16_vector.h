// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/x86/avx512_vector.h"

namespace flashmask::cpu {

/// AVX-512 with bfloat16 dot products: a unit is a pair of neighbouring bfloat16, and one instruction does two
/// multiply-adds per lane. Everything outside the products and exp2() is Avx512.
struct Avx512Bf16 : Avx512 {
  using Unit = std::uint32_t;
  static constexpr int step = 2;

  static FLASHMASK_INLINE Vec exp2(Vec x) {
    const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec y = fma(broadcast(kExp2Degree4[3]), f, broadcast(kExp2Degree4[2]));
    y = fma(y, f, broadcast(kExp2Degree4[1]));
    y = fma(y, f, broadcast(kExp2Degree4[0]));
    y = fma(y, f, broadcast(1.0f));
    return _mm512_scalef_ps(y, x);
  }

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }
  static FLASHMASK_INLINE Vec broadcast_unit(const Unit* p) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*p)));
  }
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t, Vec x0, Vec x1) {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x1, x0));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(interleaved(), both));
  }
  /// Stores one row of 16 as 8 units, for a reduction along the row.
  static FLASHMASK_INLINE void store_row(Unit* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }

  /// Loads 32 columns of two rows as 32 units; `count` of the columns exist.
  static FLASHMASK_INLINE void load_row_pair(Unit* dst, const Bf16* row0, const Bf16* row1, int count) {
    const __mmask32 present = static_cast<__mmask32>(count >= 32 ? ~0u : (1u << count) - 1);
    const __m512i a = row0 ? _mm512_maskz_loadu_epi16(present, row0) : _mm512_setzero_si512();
    const __m512i b = row1 ? _mm512_maskz_loadu_epi16(present, row1) : _mm512_setzero_si512();
    const __m512i high_half = _mm512_set1_epi16(16);
    const __m512i from_low = pair_index();
    _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(a, from_low, b));
    _mm512_storeu_si512(dst + 16, _mm512_permutex2var_epi16(a, _mm512_add_epi16(from_low, high_half), b));
  }
  /// Loads 32 columns of a row as 16 units; `count` of the columns exist.
  static FLASHMASK_INLINE void load_row(Unit* dst, const Bf16* row, int count) {
    const __mmask32 present = static_cast<__mmask32>(count >= 32 ? ~0u : (1u << count) - 1);
    _mm512_storeu_si512(dst, _mm512_maskz_loadu_epi16(present, row));
  }

  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    Avx512::transpose(reinterpret_cast<const float*>(src), src_stride, reinterpret_cast<float*>(dst), dst_stride);
  }

 private:
  /// Words 0, 16, 1, 17, … of one register: lane i of the low half beside lane i of the high half.
  static FLASHMASK_INLINE __m512i interleaved() {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
  }
  /// Words 0, 32, 1, 33, … of two registers.
  static FLASHMASK_INLINE __m512i pair_index() {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(32)), 16));
  }
};

}  // namespace flashmask::cpu
