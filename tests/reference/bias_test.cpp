// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "kit/random_numbers.h"
#include "reference/finite_differences.h"
#include "reference/grouped_problem.h"

namespace flashmask {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Mask all_of(std::int64_t rows, std::int64_t columns) {
  return from_predicate({1, 1, rows, columns}, [](auto, auto, auto, auto) { return true; });
}

Problem one_row(const ScoreChange& change) {
  Problem p;
  p.query_length = p.head_dim = p.value_dim = 1;
  p.key_length = 2;
  p.scale = 2.0;
  p.change = change;
  return p;
}

reference::Outputs attend(const Problem& p, const std::vector<double>& bias, std::int64_t origin = 0) {
  static const std::vector<double> q{1}, k{0, 3}, v{10, 20};
  reference::Inputs in{q, k, v};
  in.bias = bias;
  in.bias_shape = {1, 1, 1, static_cast<std::int64_t>(bias.size())};
  in.bias_origin = origin;
  return reference::forward(p, all_of(1, 2), in);
}

/// Scores are 0 and 2 · 3, and a bias is not scaled.
TEST(ReferenceBias, OneRowByHand) {
  const reference::Outputs out = attend(one_row(scores::bias()), {1, -4});
  const double p = 1 / (1 + std::exp(1 - 2));
  EXPECT_NEAR(out.o[0], 10 + 10 * p, 1e-13);
  EXPECT_NEAR(out.lse[0], std::log(std::exp(1) + std::exp(2)), 1e-13);
}

/// The cap is 6 tanh(6 / 6) without the bias, and the bias is added to that.
TEST(ReferenceBias, IsAddedBehindTheCap) {
  Problem p = one_row(scores::bias());
  p.change = scores::softcap(6) | scores::bias();
  const double capped = 6 * std::tanh(1.0);
  EXPECT_NEAR(attend(p, {5, 100}).lse[0], std::log(std::exp(5) + std::exp(capped + 100)), 1e-12);
}

/// The row is at the end of its two columns: their distances are 1 and 0.
TEST(ReferenceBias, EntriesAreDistances) {
  const Problem p = one_row(scores::distance());
  EXPECT_NEAR(attend(p, {0.5, 7}).lse[0], std::log(std::exp(7) + std::exp(6.5)), 1e-13);
  EXPECT_NEAR(attend(p, {0.5}).lse[0], std::log(1 + std::exp(6.5)), 1e-13) << "no entry for distance 1";
  EXPECT_NEAR(attend(p, {9, 0.5, 7}, 1).lse[0], std::log(std::exp(7) + std::exp(6.5)), 1e-13);
}

TEST(ReferenceBias, MinusInfinityHides) {
  const Problem p = one_row(scores::bias());
  EXPECT_EQ(attend(p, {0, -kInfinity}).o[0], 10);
  const reference::Outputs out = attend(p, {-kInfinity, -kInfinity});
  EXPECT_EQ(out.o[0], 0);
  EXPECT_EQ(out.lse[0], -kInfinity);
}

struct Shared {
  ScoreChange change;
  std::array<std::int64_t, 4> shape;
};

class ReferenceBiasGradient : public testing::TestWithParam<Shared> {};

/// With a cap, a sink, dropout, grad_lse, grouped heads, rows that see nothing and scores that the bias hides.
TEST_P(ReferenceBiasGradient, IsFiniteDifferences) {
  Problem p = test::grouped_problem();
  p.change = scores::softcap(1.5) | GetParam().change;
  const Mask causal = test::grouped_mask();
  check::RandomNumbers random(3);
  const auto numbers = [&](std::int64_t count) {
    std::vector<double> made(static_cast<std::size_t>(count));
    for (double& each : made) each = random.normal();
    return made;
  };
  std::vector<double> q = numbers(2 * 5 * 4 * 3), k = numbers(2 * 3 * 2 * 3), v = numbers(2 * 3 * 2 * 2);
  const auto& shape = GetParam().shape;
  std::vector<double> sinks = numbers(4), bias = numbers(shape[0] * shape[1] * shape[2] * shape[3]);
  const std::vector<double> grad_o = numbers(2 * 5 * 4 * 2), grad_lse = numbers(2 * 4 * 5);
  std::vector<double> dropout(2 * 4 * 5 * 3, 2);
  for (std::size_t i = 0; i < dropout.size(); i += 3) dropout[i] = 0;
  reference::Inputs in{q, k, v, dropout, sinks};
  in.bias = bias;
  in.bias_shape = shape;
  in.bias_origin = 1;
  const auto loss = [&] { return test::weighted_sum(reference::forward(p, causal, in), grad_o, grad_lse); };
  const reference::Gradients grad = reference::backward(p, causal, in, grad_o, grad_lse);
  test::expect_finite_differences(loss, bias, grad.bias);
  test::expect_finite_differences(loss, q, grad.q);
  test::expect_finite_differences(loss, k, grad.k);
  test::expect_finite_differences(loss, sinks, grad.sinks);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReferenceBiasGradient,
                         testing::Values(Shared{scores::bias(), {2, 4, 5, 3}}, Shared{scores::bias(), {1, 4, 5, 3}},
                                         Shared{scores::bias(), {2, 1, 1, 3}}, Shared{scores::distance(), {1, 4, 1, 7}},
                                         Shared{scores::distance(), {2, 1, 5, 2}}));

TEST(ReferenceBias, RefusesOtherShapes) {
  try {
    attend(one_row(scores::bias()), {1, 2, 3});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "reference: axis 3 of bias_shape is 3; the problem needs 2");
  }
}

}  // namespace
}  // namespace flashmask
