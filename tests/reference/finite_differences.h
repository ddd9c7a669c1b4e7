// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace flashmask::test {

/// Compares a gradient with the central differences of loss(), which reads `input`.
template <class Loss>
void expect_finite_differences(const Loss& loss, std::vector<double>& input, const std::vector<double>& gradient) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(gradient.size(), input.size());
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double at = input[i];
    input[i] = at + kStep;
    const double above = loss();
    input[i] = at - kStep;
    const double below = loss();
    input[i] = at;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-7 * std::max(1.0, std::abs(gradient[i]))) << "at " << i;
  }
}

}  // namespace flashmask::test
