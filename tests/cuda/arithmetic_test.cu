// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/device_array.cuh"
#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/softcap.cuh"

namespace flashmask::cuda {
namespace {

using check::DeviceArray;

__global__ void raise(const float* x, float* powers, int* lanes) {
  powers[threadIdx.x] = exp2_approximate(x[threadIdx.x]);
  lanes[threadIdx.x] = lane_index();
}

TEST(Exp2, IsCloseAndZeroAtMinusInfinity) {
  std::vector<float> x(64, -INFINITY);
  for (int i = 1; i < 64; ++i) x[i] = 0.37F * static_cast<float>(i - 40);
  const DeviceArray<float> given(x), powers(64);
  const DeviceArray<int> lanes(64);
  raise<<<1, 64>>>(given.data(), powers.data(), lanes.data());
  EXPECT_EQ(powers.values()[0], 0);
  for (int i = 1; i < 64; ++i) ASSERT_NEAR(powers.values()[i] / std::exp2(x[i]), 1, 1e-6) << x[i];
  for (int i = 0; i < 64; ++i) ASSERT_EQ(lanes.values()[i], i % 32);
}

__global__ void find_tanh(const float* exponents, float* results) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  results[i] = tanh_of_power(exponents[i]);
}

TEST(Tanh, IsRightEverywhere) {
  constexpr int kBlocks = 1024, kCount = 64 * kBlocks;
  std::vector<float> exponents(kCount);
  for (int i = 0; i < kCount; ++i) exponents[i] = 0.00101F * static_cast<float>(i - kCount / 2);
  exponents[0] = -INFINITY;
  exponents[1] = INFINITY;
  const DeviceArray<float> given(exponents), results(kCount);
  find_tanh<<<kBlocks, 64>>>(given.data(), results.data());
  const std::vector<float> found = results.values();
  for (int i = 0; i < kCount; ++i) {
    const double expected = std::tanh(0.34657359027997265 * exponents[i]);
    ASSERT_NEAR(found[i], expected, 0x1p-21) << exponents[i];
  }
  EXPECT_EQ(found[0], -1);
  EXPECT_EQ(found[1], 1);
}

__global__ void pack_both(float low, float high, std::uint32_t* words) {
  words[0] = pack<__nv_bfloat16>(low, high);
  words[1] = pack<__half>(low, high);
}

TEST(Pack, RoundsToEvenAndPutsTheFirstLow) {
  const DeviceArray<std::uint32_t> words(2);
  pack_both<<<1, 1>>>(1 + 0x1p-8F, -2, words.data());
  EXPECT_EQ(words.values()[0], 0xC0003F80U);
  pack_both<<<1, 1>>>(1 + 3 * 0x1p-11F, 0.5F, words.data());
  EXPECT_EQ(words.values()[1], 0x38003C02U);
}

}  // namespace
}  // namespace flashmask::cuda
