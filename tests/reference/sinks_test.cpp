// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "reference/finite_differences.h"
#include "reference/grouped_problem.h"

namespace flashmask {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

struct Tensors {
  std::vector<double> q = random_values(2 * 5 * 4 * 3, 1), k = random_values(2 * 3 * 2 * 3, 2),
                      v = random_values(2 * 3 * 2 * 2, 3), grad_o = random_values(2 * 5 * 4 * 2, 4),
                      grad_lse = random_values(2 * 4 * 5, 5), sinks;

  reference::Inputs inputs() const { return {q, k, v, {}, sinks}; }
  double loss() const {
    return test::weighted_sum(reference::forward(test::grouped_problem(), test::grouped_mask(), inputs()), grad_o,
                              grad_lse);
  }
};

TEST(ReferenceSinks, OneRowByHand) {
  Problem p;
  p.query_length = p.head_dim = p.value_dim = 1;
  p.key_length = 2;
  p.scale = 1.0F;
  const Mask all = from_predicate({1, 1, 1, 2}, [](auto, auto, auto, auto) { return true; });
  const std::vector<double> q{1}, k{0, std::log(3.0)}, v{4, 8}, sinks{std::log(4.0)}, grad_o{1}, grad_lse{2};
  const reference::Inputs in{q, k, v, {}, sinks};
  const auto out = reference::forward(p, all, in);
  EXPECT_NEAR(out.o[0], (4 + 3 * 8) / 8.0, 1e-14);
  EXPECT_NEAR(out.lse[0], std::log(8.0), 1e-14);
  // The sink has half of the probability; what it takes from o it takes from each of its parts.
  EXPECT_NEAR(reference::backward(p, all, in, grad_o, {}).sinks[0], -0.5 * 3.5, 1e-14);
  EXPECT_NEAR(reference::backward(p, all, in, grad_o, grad_lse).sinks[0], -0.5 * (3.5 - 2), 1e-14);
}

TEST(ReferenceSinks, GradientsMatchFiniteDifferences) {
  for (const std::int64_t count : {4, 2 * 4 * 5}) {
    SCOPED_TRACE(count);
    Tensors t;
    t.sinks = random_values(count, 6);
    const auto grad =
        reference::backward(test::grouped_problem(), test::grouped_mask(), t.inputs(), t.grad_o, t.grad_lse);
    const auto loss = [&] { return t.loss(); };
    test::expect_finite_differences(loss, t.q, grad.q);
    test::expect_finite_differences(loss, t.k, grad.k);
    test::expect_finite_differences(loss, t.v, grad.v);
    test::expect_finite_differences(loss, t.sinks, grad.sinks);
  }
}

TEST(ReferenceSinks, RowsThatSeeNothingHaveTheLseOfTheirSink) {
  Tensors t;
  t.sinks = {-1, 0, 1, 2};
  const auto out = reference::forward(test::grouped_problem(), test::grouped_mask(), t.inputs());
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(out.lse[head * 5], t.sinks[head]);
    EXPECT_EQ(out.o[head * 2], 0);
  }
}

TEST(ReferenceSinks, OfMinusInfinityAreNone) {
  Tensors t;
  const auto without = reference::forward(test::grouped_problem(), test::grouped_mask(), t.inputs());
  const auto grad_without =
      reference::backward(test::grouped_problem(), test::grouped_mask(), t.inputs(), t.grad_o, t.grad_lse);
  t.sinks.assign(4, -HUGE_VAL);
  const auto with = reference::forward(test::grouped_problem(), test::grouped_mask(), t.inputs());
  const auto grad =
      reference::backward(test::grouped_problem(), test::grouped_mask(), t.inputs(), t.grad_o, t.grad_lse);
  EXPECT_EQ(with.o, without.o);
  EXPECT_EQ(with.lse, without.lse);
  EXPECT_EQ(grad.q, grad_without.q);
  EXPECT_EQ(grad.sinks, std::vector<double>(4, 0.0));
}

TEST(ReferenceSinks, NaNStaysWithItsHead) {
  Tensors t;
  t.sinks = {0, kNaN, 0, 0};
  const auto out = reference::forward(test::grouped_problem(), test::grouped_mask(), t.inputs());
  const auto grad = reference::backward(test::grouped_problem(), test::grouped_mask(), t.inputs(), t.grad_o, {});
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t head = 0; head < 4; ++head) {
      const std::size_t at = row * 4 + head;
      EXPECT_EQ(std::isnan(out.lse[head * 5 + row]), head == 1) << row << " " << head;
      EXPECT_EQ(std::isnan(out.o[at * 2]), head == 1 && row >= 2) << row << " " << head;
      EXPECT_EQ(std::isnan(grad.q[at * 3]), head == 1 && row >= 2) << row << " " << head;
    }
  }
  for (std::size_t key = 0; key < 3; ++key) {
    EXPECT_TRUE(std::isnan(grad.k[key * 6])) << key;
    EXPECT_FALSE(std::isnan(grad.k[key * 6 + 3])) << key;
  }
  EXPECT_TRUE(std::isnan(grad.sinks[1]));
  EXPECT_FALSE(std::isnan(grad.sinks[0]));
}

TEST(ReferenceSinks, OfAnotherLengthAreRefused) {
  Tensors t;
  t.sinks.assign(5, 0.0);
  try {
    reference::forward(test::grouped_problem(), test::grouped_mask(), t.inputs());
    FAIL() << "five sinks for four heads were taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "reference: sinks holds 5 elements; the problem needs 40");
  }
}

}  // namespace
}  // namespace flashmask
