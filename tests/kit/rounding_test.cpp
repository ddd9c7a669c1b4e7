// SPDX-License-Identifier: Apache-2.0
#include "kit/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace flashmask::check {
namespace {

void expect_rounds_to_nearest(std::uint16_t (*encode)(float), float (*decode)(std::uint16_t), std::uint16_t word) {
  const float value = decode(word), above = decode(static_cast<std::uint16_t>(word + 1));
  if (!std::isfinite(above)) return;
  const float middle = value + (above - value) / 2;
  EXPECT_EQ(encode(value), word);
  EXPECT_EQ(encode(middle), word + (word & 1)) << value;  // a tie goes to the even word
  EXPECT_EQ(encode(std::nextafter(middle, 0.0F)), word) << value;
  EXPECT_EQ(encode(std::nextafter(middle, HUGE_VALF)), word + 1) << value;
}

TEST(Rounding, HalfTypesRoundToNearestEven) {
  for (std::uint32_t word = 0; word < 0x7C00; ++word) {
    expect_rounds_to_nearest(to_f16, from_f16, static_cast<std::uint16_t>(word));
  }
  for (std::uint32_t word = 0; word < 0x7F80; ++word) {
    expect_rounds_to_nearest(to_bf16, from_bf16, static_cast<std::uint16_t>(word));
  }
}

TEST(Rounding, HalfTypesHaveTheirKnownValues) {
  EXPECT_EQ(from_f16(0x3C00), 1.0F);
  EXPECT_EQ(from_f16(0x0001), 0x1p-24F);
  EXPECT_EQ(from_f16(0x7BFF), 65504.0F);
  EXPECT_EQ(from_f16(0xC000), -2.0F);
  EXPECT_EQ(from_bf16(0x3F80), 1.0F);
  EXPECT_EQ(to_f16(-1.5F), 0xBE00);
  EXPECT_EQ(to_bf16(-1.5F), 0xBFC0);
}

TEST(Rounding, KeepsInfinitiesAndNaNs) {
  EXPECT_EQ(to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(from_f16(0xFC00), -HUGE_VALF);
  EXPECT_EQ(to_bf16(HUGE_VALF), 0x7F80);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_TRUE(std::isnan(round_to(dtype, std::numeric_limits<float>::quiet_NaN())));
  }
}

}  // namespace
}  // namespace flashmask::check
