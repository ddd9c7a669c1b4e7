// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/arm/neon_vector.h"

namespace flashmask::cpu {

/// Advanced SIMD with bfloat16 dot products (BFDOT): a unit is a pair of neighbouring bfloat16, and one instruction
/// does two multiply-adds per lane. Everything outside the products is Neon. BFMMLA, which does four, sums 2 × 2 blocks
/// of scores per register instead of four lanes of a line: another structure than that of these kernels.
struct NeonBf16 : Neon {
  using Unit = std::uint32_t;
  static constexpr int step = 2;

  static FLASHMASK_INLINE Vec load_units(const Unit* p) { return vreinterpretq_f32_u32(vld1q_u32(p)); }
  /// One pair, as the bits of a float32: see Neon.
  static FLASHMASK_INLINE float broadcast_unit(const Unit* p) {
    float pair;
    std::memcpy(&pair, p, sizeof pair);
    return pair;
  }
  static FLASHMASK_INLINE Vec dot(Vec acc, float a, Vec b) {
    return vbfdotq_lane_f32(acc, vreinterpretq_bf16_f32(b), vreinterpret_bf16_f32(float32x2_t{a, 0.0f}), 0);
  }
  static FLASHMASK_INLINE Vec dot(Vec acc, Vec a, Vec b) {
    return vbfdotq_f32(acc, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
  }

  static FLASHMASK_INLINE void store_row_pair(Unit* p, std::int64_t, Vec x0, Vec x1) {
    const uint16x8_t row0 = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x0));
    const uint16x8_t row1 = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x1));
    vst1q_u32(p, vreinterpretq_u32_u16(vzip1q_u16(row0, row1)));
  }
  /// Stores one row of 4 as 2 units, for a reduction along the row.
  static FLASHMASK_INLINE void store_row(Unit* p, Vec x) { vst1_u32(p, vreinterpret_u32_bf16(vcvt_bf16_f32(x))); }

  /// Loads 8 columns of two rows as 8 units; `count` of the columns exist.
  static FLASHMASK_INLINE void load_row_pair(Unit* dst, const Bf16* row0, const Bf16* row1, int count) {
    const uint16x8_t a = load_present(row0, row0 ? count : 0), b = load_present(row1, row1 ? count : 0);
    vst1q_u32(dst, vreinterpretq_u32_u16(vzip1q_u16(a, b)));
    vst1q_u32(dst + lanes, vreinterpretq_u32_u16(vzip2q_u16(a, b)));
  }
  /// Loads 8 columns of a row as 4 units; `count` of the columns exist.
  static FLASHMASK_INLINE void load_row(Unit* dst, const Bf16* row, int count) {
    vst1q_u32(dst, vreinterpretq_u32_u16(load_present(row, count)));
  }

  static FLASHMASK_INLINE void transpose(const Unit* src, std::int64_t src_stride, Unit* dst, std::int64_t dst_stride) {
    Neon::transpose(reinterpret_cast<const float*>(src), src_stride, reinterpret_cast<float*>(dst), dst_stride);
  }

 private:
  static FLASHMASK_INLINE uint16x8_t load_present(const Bf16* row, int count) {
    if (count >= 2 * lanes) return vld1q_u16(&row->bits);
    std::uint16_t whole[2 * lanes] = {};
    if (count > 0) std::memcpy(whole, row, static_cast<std::size_t>(count) * sizeof(Bf16));
    return vld1q_u16(whole);
  }
};

}  // namespace flashmask::cpu
