// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "flashmask/reference.h"
#include "kit/random_numbers.h"
#include "reference/grouped_problem.h"

namespace flashmask {
namespace {

/// With a cap, a bias, sinks, dropout, grouped heads and rows that see nothing.
TEST(ReferenceMaxScores, AreThoseOfTheFormula) {
  Problem p = test::grouped_problem();
  p.change = scores::softcap(1.5) | scores::bias();
  check::RandomNumbers random(3);
  const auto numbers = [&](std::int64_t count) {
    std::vector<double> made(static_cast<std::size_t>(count));
    for (double& each : made) each = random.normal();
    return made;
  };
  const std::vector<double> q = numbers(2 * 5 * 4 * 3), k = numbers(2 * 3 * 2 * 3), v = numbers(2 * 3 * 2 * 2);
  const std::vector<double> bias = numbers(2 * 4 * 5 * 3), sinks{9, 9, 9, 9}, dropout(2 * 4 * 5 * 3, 0.0);
  reference::Inputs in{q, k, v, dropout, sinks};
  in.bias = bias;
  in.bias_shape = {2, 4, 5, 3};
  const std::vector<double> found = reference::forward(p, test::grouped_mask(), in).max_scores;
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 4; ++h)
      for (std::size_t i = 0; i < 5; ++i) {
        double largest = -HUGE_VAL;
        for (std::size_t j = 0; j + 2 <= i && j < 3; ++j) {
          double product = 0;
          for (std::size_t c = 0; c < 3; ++c)
            product += q[((b * 5 + i) * 4 + h) * 3 + c] * k[((b * 3 + j) * 2 + h / 2) * 3 + c];
          const double score = 1.5 * std::tanh(product / std::sqrt(3.0) / 1.5) + bias[((b * 4 + h) * 5 + i) * 3 + j];
          largest = std::max(largest, score);
        }
        const double row = found[(b * 4 + h) * 5 + i];
        if (i < 2)
          EXPECT_EQ(row, -HUGE_VAL);
        else
          EXPECT_NEAR(row, largest, 1e-13);
      }
}

}  // namespace
}  // namespace flashmask
