// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "reference/finite_differences.h"
#include "reference/grouped_problem.h"

namespace flashmask {
namespace {

Problem one_row(double softcap) {
  Problem p;
  p.query_length = p.head_dim = p.value_dim = 1;
  p.key_length = 2;
  p.scale = 2.0F;
  if (softcap != 0) p.change = scores::softcap(softcap);
  return p;
}

Mask all_of(std::int64_t rows, std::int64_t columns) {
  return from_predicate({1, 1, rows, columns}, [](auto, auto, auto, auto) { return true; });
}

TEST(ReferenceSoftcap, OneRowByHand) {
  // Scores are 0 and 2 · 3; capped at 4 the second is 4 tanh(6 / 4).
  const std::vector<double> q{1}, k{0, 3}, v{10, 20};
  const double capped = 4 * std::tanh(1.5), p = 1 / (1 + std::exp(-capped));
  const auto out = reference::forward(one_row(4), all_of(1, 2), {q, k, v});
  EXPECT_NEAR(out.o[0], 10 + 10 * p, 1e-13);
  EXPECT_NEAR(out.lse[0], std::log(1 + std::exp(capped)), 1e-13);
}

/// tanh(−∞) is −1: were scores capped after the mask, hidden keys would be seen.
TEST(ReferenceSoftcap, MaskedKeysStayMasked) {
  const Mask first = from_predicate({1, 1, 1, 2}, [](auto, auto, auto, auto column) { return column == 0; });
  const std::vector<double> q{1}, k{0, 3}, v{10, 20};
  const auto out = reference::forward(one_row(0.5), first, {q, k, v});
  EXPECT_EQ(out.o[0], 10);
  EXPECT_EQ(out.lse[0], 0);
}

TEST(ReferenceSoftcap, LeavesScoresFarBelowTheCap) {
  const std::vector<double> q{1}, k{0.5, 3}, v{10, 20};
  const auto capped = reference::forward(one_row(1e9), all_of(1, 2), {q, k, v});
  const auto plain = reference::forward(one_row(0), all_of(1, 2), {q, k, v});
  EXPECT_NEAR(capped.o[0], plain.o[0], 1e-12);
  EXPECT_NEAR(capped.lse[0], plain.lse[0], 1e-12);
}

std::vector<double> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

/// Two batch entries, four heads over two, causal with rows that see nothing, sinks of heads, and dropout.
TEST(ReferenceSoftcap, GradientsAreFiniteDifferences) {
  Problem p = test::grouped_problem();
  p.change = scores::softcap(1.5);
  const Mask causal = test::grouped_mask();
  std::vector<double> q = random_values(2 * 5 * 4 * 3, 1), k = random_values(2 * 3 * 2 * 3, 2),
                      v = random_values(2 * 3 * 2 * 2, 3), sinks = random_values(4, 6);
  const std::vector<double> grad_o = random_values(2 * 5 * 4 * 2, 4), grad_lse = random_values(2 * 4 * 5, 5);
  std::vector<double> dropout(2 * 4 * 5 * 3, 2);
  for (std::size_t i = 0; i < dropout.size(); i += 3) dropout[i] = 0;
  const auto loss = [&] {
    return test::weighted_sum(reference::forward(p, causal, {q, k, v, dropout, sinks}), grad_o, grad_lse);
  };
  const reference::Gradients grad = reference::backward(p, causal, {q, k, v, dropout, sinks}, grad_o, grad_lse);
  test::expect_finite_differences(loss, q, grad.q);
  test::expect_finite_differences(loss, k, grad.k);
  test::expect_finite_differences(loss, v, grad.v);
  test::expect_finite_differences(loss, sinks, grad.sinks);
}

TEST(ReferenceSoftcap, RefusesWhatIsNoCap) {
  for (const double softcap : {-1.0, 1e-31, 1e31, std::nan(""), double{INFINITY}}) {
    try {
      validate(one_row(softcap));
      ADD_FAILURE() << softcap;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("softcap is "), std::string::npos) << error.what();
      EXPECT_EQ(error.status(), Status::invalid_argument);
    }
  }
  EXPECT_NO_THROW(validate(one_row(0)));
}

}  // namespace
}  // namespace flashmask
