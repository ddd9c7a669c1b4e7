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
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const float size = std::abs(value);
  if (std::isnan(value)) return sign | 0x7E00U;
  if (size >= 65520.0F) return sign | 0x7C00U;  // halfway from the largest number to the next: infinity
  // Biased as a float's; float16 has no smaller one than that of 2^-14.
  const std::uint32_t exponent = std::max(bits >> 23 & 0xFFU, 127U - 14U);
  const auto steps_of_one = std::bit_cast<float>((127U + 127U + 10U - exponent) << 23);
  constexpr float kWhole = 0x1p23F;  // beside it a sum rounds to whole numbers
  const auto steps = static_cast<std::uint32_t>(size * steps_of_one + kWhole - kWhole);
  // A normal number has 1024 … 2047 steps, of which 1024 raise the exponent field by one; a subnormal one has fewer,
  // and 2048 carry into the next exponent.
  return static_cast<std::uint16_t>(sign + ((exponent - (127U - 14U)) << 10) + steps);
}

float from_f16(std::uint16_t word) {
  const std::uint32_t sign = (word & 0x8000U) << 16, exponent = word >> 10 & 0x1FU, fraction = word & 0x3FFU;
  if (exponent == 0) return (sign != 0 ? -0x1p-24F : 0x1p-24F) * static_cast<float>(fraction);
  const std::uint32_t field = exponent == 0x1F ? 0xFFU : exponent + (127U - 15U);
  return std::bit_cast<float>(sign | field << 23 | fraction << 13);
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
