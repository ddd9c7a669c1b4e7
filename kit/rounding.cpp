// SPDX-License-Identifier: Apache-2.0
#include "kit/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace flashmask::check {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // stays a NaN when truncated
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float from_bf16(std::uint16_t word) { return std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16); }

std::uint16_t to_f16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  const float size = std::abs(value);
  if (std::isnan(value)) return sign | 0x7E00U;
  if (size >= 65520.0F) return sign | 0x7C00U;  // halfway from the largest number to the next: infinity
  const int exponent = std::max(size == 0 ? -14 : std::ilogb(size), -14);
  const float unit = std::ldexp(1.0F, exponent - 10);
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(size / unit));
  // A normal number has 1024 … 2047 steps, of which 1024 raise the exponent field by one; a subnormal one has fewer,
  // and 2048 carry into the next exponent.
  return static_cast<std::uint16_t>(sign + (static_cast<std::uint32_t>(exponent + 14) << 10) + steps);
}

float from_f16(std::uint16_t word) {
  const int exponent = (word >> 10) & 0x1F, fraction = word & 0x3FF;
  const float sign = (word & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1F) return fraction != 0 ? std::nanf("") : sign * HUGE_VALF;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16:
      return from_bf16(to_bf16(value));
    case DType::f16:
      return from_f16(to_f16(value));
    case DType::f32:
      break;
  }
  return value;
}

}  // namespace flashmask::check
