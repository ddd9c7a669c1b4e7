// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "reference/grouped_problem.h"

namespace flashmask {
namespace {

std::vector<double> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

std::vector<double> moved(const std::vector<double>& from, const std::vector<double>& along, double by) {
  std::vector<double> to = from;
  for (std::size_t i = 0; i < along.size(); ++i) to[i] += by * along[i];
  return to;
}

/// Two batch entries, four heads over two, rows that see nothing, sinks, dropout and a change of scores.
class ReferenceTangents : public testing::Test {
 protected:
  ReferenceTangents() {
    p.change = ScoreChange::parse("softcap(1.5) | multiply(1.25)");
    for (std::size_t i = 0; i < dropout.size(); i += 3) dropout[i] = 0;
  }

  reference::Outputs outputs(double by) const {
    const std::vector<double> q1 = moved(q, tangent_q, by), k1 = moved(k, tangent_k, by), v1 = moved(v, tangent_v, by);
    return reference::forward(p, mask, {q1, k1, v1, dropout, sinks});
  }

  void expect_finite_differences() const {
    constexpr double kStep = 1e-5;
    const reference::Tangents tangents =
        reference::forward_tangents(p, mask, {q, k, v, dropout, sinks}, tangent_q, tangent_k, tangent_v);
    const reference::Outputs above = outputs(kStep), below = outputs(-kStep);
    ASSERT_EQ(tangents.o.size(), above.o.size());
    ASSERT_EQ(tangents.lse.size(), above.lse.size());
    for (std::size_t i = 0; i < tangents.o.size(); ++i)
      EXPECT_NEAR(tangents.o[i], (above.o[i] - below.o[i]) / (2 * kStep), 1e-8) << "o at " << i;
    for (std::size_t i = 0; i < tangents.lse.size(); ++i)
      EXPECT_NEAR(tangents.lse[i], (above.lse[i] - below.lse[i]) / (2 * kStep), 1e-8) << "lse at " << i;
  }

  Problem p = test::grouped_problem();
  Mask mask = test::grouped_mask();
  std::vector<double> q = random_values(2 * 5 * 4 * 3, 1), k = random_values(2 * 3 * 2 * 3, 2),
                      v = random_values(2 * 3 * 2 * 2, 3), sinks = random_values(4, 4);
  std::vector<double> dropout = std::vector<double>(2 * 4 * 5 * 3, 2);
  std::vector<double> tangent_q = random_values(2 * 5 * 4 * 3, 5), tangent_k = random_values(2 * 3 * 2 * 3, 6),
                      tangent_v = random_values(2 * 3 * 2 * 2, 7);
};

TEST_F(ReferenceTangents, AreFiniteDifferences) { expect_finite_differences(); }

TEST_F(ReferenceTangents, ThatAreLeftOutAreZero) {
  tangent_q.clear();
  expect_finite_differences();
  tangent_v.clear();
  expect_finite_differences();
  tangent_k.clear();
  expect_finite_differences();
}

TEST_F(ReferenceTangents, OfAnotherSizeAreRefused) {
  tangent_k.pop_back();
  try {
    reference::forward_tangents(p, mask, {q, k, v, dropout, sinks}, tangent_q, tangent_k, tangent_v);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("tangent_k holds 35 elements"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashmask
