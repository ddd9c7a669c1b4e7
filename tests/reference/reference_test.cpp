// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "flashmask/error.h"
#include "reference/finite_differences.h"

namespace flashmask {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Tensors {
  std::vector<double> q, k, v, grad_o, grad_lse;

  reference::Inputs inputs() const { return {q, k, v}; }
};

std::vector<double> random_values(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

Tensors random_tensors(const Problem& p, unsigned seed) {
  std::mt19937 random(seed);
  return {random_values(p.batch * p.query_length * p.query_heads * p.head_dim, random),
          random_values(p.batch * p.key_length * p.kv_heads * p.head_dim, random),
          random_values(p.batch * p.key_length * p.kv_heads * p.value_dim, random),
          random_values(p.batch * p.query_length * p.query_heads * p.value_dim, random),
          random_values(p.batch * p.query_heads * p.query_length, random)};
}

Problem single_head(std::int64_t rows, std::int64_t columns, std::int64_t dim) {
  Problem problem;
  problem.query_length = rows;
  problem.key_length = columns;
  problem.head_dim = problem.value_dim = dim;
  return problem;
}

Mask everything(std::int64_t rows, std::int64_t columns) {
  return from_predicate({1, 1, rows, columns}, [](auto, auto, auto, auto) { return true; });
}

/// Bottom-right aligned, so that with more rows than columns the first rows see nothing.
Mask causal(std::int64_t rows, std::int64_t columns) {
  return from_predicate({1, 1, rows, columns},
                        [=](auto, auto, auto row, auto column) { return column <= row + columns - rows; });
}

/// A scalar of both outputs, whose gradients are grad_o and grad_lse. Empty rows have no lse to speak of.
double loss(const Problem& problem, const Mask& mask, const Tensors& t) {
  const reference::Outputs out = reference::forward(problem, mask, t.inputs());
  double sum = 0;
  for (std::size_t i = 0; i < out.o.size(); ++i) sum += out.o[i] * t.grad_o[i];
  for (std::size_t i = 0; i < out.lse.size(); ++i) {
    if (out.lse[i] != -kInfinity) sum += out.lse[i] * t.grad_lse[i];
  }
  return sum;
}

void expect_gradients_of_loss(const Problem& problem, const Mask& mask) {
  Tensors t = random_tensors(problem, 7);
  const auto grad = reference::backward(problem, mask, t.inputs(), t.grad_o, t.grad_lse);
  const auto sum = [&] { return loss(problem, mask, t); };
  test::expect_finite_differences(sum, t.q, grad.q);
  test::expect_finite_differences(sum, t.k, grad.k);
  test::expect_finite_differences(sum, t.v, grad.v);
}

TEST(Reference, OneRowByHand) {
  Problem problem = single_head(1, 2, 1);
  problem.scale = 1.0f;
  const std::vector<double> q{1}, k{0, std::log(3.0)}, v{4, 8};
  const auto out = reference::forward(problem, everything(1, 2), {q, k, v});
  EXPECT_NEAR(out.o[0], 7, 1e-14);
  EXPECT_NEAR(out.lse[0], std::log(4.0), 1e-14);
}

// 1 / sqrt(8) and 0.3 are not numbers of float32, whose rounding would show in the eighth digit.
TEST(Reference, ScalesAreDoubles) {
  Problem problem = single_head(1, 2, 8);
  const std::vector<double> q(8, 1), k{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, v(16, 1);
  EXPECT_NEAR(reference::forward(problem, everything(1, 2), {q, k, v}).lse[0], std::log1p(std::exp(std::sqrt(8.0))),
              1e-14);
  problem.scale = 0.3;
  EXPECT_NEAR(reference::forward(problem, everything(1, 2), {q, k, v}).lse[0], std::log1p(std::exp(2.4)), 1e-14);
}

TEST(Reference, GradientsOfOneRowByHand) {
  Problem problem = single_head(1, 2, 1);
  problem.scale = 1.0f;
  const std::vector<double> q{1}, k{0, std::log(3.0)}, v{4, 8}, grad_o{1}, grad_lse{2};

  const auto plain = reference::backward(problem, everything(1, 2), {q, k, v}, grad_o, {});
  EXPECT_NEAR(plain.q[0], 0.75 * std::log(3.0), 1e-14);
  EXPECT_NEAR(plain.k[0], -0.75, 1e-14);
  EXPECT_NEAR(plain.k[1], 0.75, 1e-14);
  EXPECT_NEAR(plain.v[0], 0.25, 1e-14);
  EXPECT_NEAR(plain.v[1], 0.75, 1e-14);

  const auto through_lse = reference::backward(problem, everything(1, 2), {q, k, v}, grad_o, grad_lse);
  EXPECT_NEAR(through_lse.q[0], 2.25 * std::log(3.0), 1e-14);
  EXPECT_NEAR(through_lse.k[0], -0.25, 1e-14);
  EXPECT_NEAR(through_lse.k[1], 2.25, 1e-14);
  EXPECT_NEAR(through_lse.v[0], 0.25, 1e-14);
}

TEST(Reference, ScaleDefaultsToOneOverRootOfHeadDim) {
  const Problem problem = single_head(1, 1, 4);
  const std::vector<double> q{1, 2, 3, 4}, k{1, 1, 1, 1}, v{0, 0, 0, 0};
  EXPECT_NEAR(reference::forward(problem, everything(1, 1), {q, k, v}).lse[0], 10 / 2.0, 1e-14);
}

TEST(Reference, LargeScoresDoNotOverflow) {
  Problem problem = single_head(1, 2, 1);
  problem.scale = 1.0f;
  const std::vector<double> q{1000}, k{5, 5}, v{1, 3};
  const auto out = reference::forward(problem, everything(1, 2), {q, k, v});
  EXPECT_NEAR(out.o[0], 2, 1e-14);
  EXPECT_NEAR(out.lse[0], 5000 + std::log(2.0), 1e-10);
}

TEST(Reference, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  const Problem problem = single_head(3, 2, 2);
  const Tensors t = random_tensors(problem, 1);
  const auto out = reference::forward(problem, causal(3, 2), t.inputs());
  EXPECT_EQ(out.o[0], 0);
  EXPECT_EQ(out.o[1], 0);
  EXPECT_EQ(out.lse[0], -kInfinity);
  EXPECT_TRUE(std::isfinite(out.lse[1]));
  EXPECT_NE(out.o[2], 0);
}

TEST(Reference, RowsThatSeeNothingGiveNoGradient) {
  const Problem problem = single_head(2, 2, 2);
  const Mask nothing = from_predicate({1, 1, 2, 2}, [](auto, auto, auto, auto) { return false; });
  const Tensors t = random_tensors(problem, 2);
  const auto grad = reference::backward(problem, nothing, t.inputs(), t.grad_o, t.grad_lse);
  EXPECT_EQ(grad.q, std::vector<double>(4, 0.0));
  EXPECT_EQ(grad.k, std::vector<double>(4, 0.0));
  EXPECT_EQ(grad.v, std::vector<double>(4, 0.0));
}

TEST(Reference, NeverReadsAMaskedColumn) {
  const Problem problem = single_head(3, 4, 2);
  const Mask mask = from_predicate({1, 1, 3, 4}, [](auto, auto, auto, auto column) { return column != 1; });
  Tensors t = random_tensors(problem, 3);
  const auto out = reference::forward(problem, mask, t.inputs());
  const auto grad = reference::backward(problem, mask, t.inputs(), t.grad_o, t.grad_lse);

  for (std::size_t c : {2, 3}) t.k[c] = t.v[c] = kNaN;
  const auto poisoned_out = reference::forward(problem, mask, t.inputs());
  const auto poisoned_grad = reference::backward(problem, mask, t.inputs(), t.grad_o, t.grad_lse);
  EXPECT_EQ(poisoned_out.o, out.o);
  EXPECT_EQ(poisoned_out.lse, out.lse);
  EXPECT_EQ(poisoned_grad.q, grad.q);
  EXPECT_EQ(poisoned_grad.k, grad.k);
  EXPECT_EQ(poisoned_grad.v, grad.v);
  EXPECT_EQ(poisoned_grad.k[2], 0);
}

TEST(Reference, NaNReachesOnlyTheRowsThatSeeIt) {
  const Problem problem = single_head(3, 3, 1);
  Tensors t = random_tensors(problem, 4);
  t.k[2] = kNaN;
  const auto out = reference::forward(problem, causal(3, 3), t.inputs());
  EXPECT_TRUE(std::isfinite(out.o[1]));
  EXPECT_TRUE(std::isnan(out.o[2]));
  EXPECT_TRUE(std::isnan(out.lse[2]));
}

TEST(Reference, ConsecutiveQueryHeadsShareAKeyHead) {
  Problem problem = single_head(1, 1, 1);
  problem.query_heads = 6;
  problem.kv_heads = 2;
  const std::vector<double> q(6, 1.0), k(2, 1.0), v{10, 20};
  const auto out = reference::forward(problem, everything(1, 1), {q, k, v});
  EXPECT_EQ(out.o, (std::vector<double>{10, 10, 10, 20, 20, 20}));
}

TEST(Reference, ConsecutiveQueryHeadsShareAMaskHead) {
  Problem problem = single_head(1, 2, 1);
  problem.query_heads = 4;
  problem.kv_heads = 2;
  const Mask mask = from_predicate({1, 2, 1, 2}, [](auto, auto head, auto, auto column) { return column == head; });
  const std::vector<double> q(4, 1.0), k(4, 1.0), v{10, 20, 30, 40};  // v: column 0 of both heads, then column 1
  EXPECT_EQ(reference::forward(problem, mask, {q, k, v}).o, (std::vector<double>{10, 10, 40, 40}));
}

TEST(Reference, EachBatchEntryHasItsMaskOrSharesTheOnlyOne) {
  Problem problem = single_head(1, 2, 1);
  problem.batch = 2;
  const std::vector<double> q(2, 1.0), k(4, 1.0), v{10, 20, 30, 40};
  const auto own = from_predicate({2, 1, 1, 2}, [](auto batch, auto, auto, auto column) { return column == batch; });
  EXPECT_EQ(reference::forward(problem, own, {q, k, v}).o, (std::vector<double>{10, 40}));
  const auto shared = from_predicate({1, 1, 1, 2}, [](auto, auto, auto, auto column) { return column == 1; });
  EXPECT_EQ(reference::forward(problem, shared, {q, k, v}).o, (std::vector<double>{20, 40}));
}

TEST(Reference, GradientsMatchFiniteDifferencesUnderFullAttention) {
  const Problem problem = single_head(3, 4, 3);
  expect_gradients_of_loss(problem, everything(3, 4));
}

TEST(Reference, GradientsMatchFiniteDifferencesUnderCausalWithEmptyRows) {
  const Problem problem = single_head(5, 3, 2);
  expect_gradients_of_loss(problem, causal(5, 3));
}

TEST(Reference, GradientsMatchFiniteDifferencesWithGroupedHeadsAndAnotherValueDim) {
  Problem problem = single_head(4, 5, 3);
  problem.batch = 2;
  problem.query_heads = 6;
  problem.kv_heads = 2;
  problem.value_dim = 2;
  expect_gradients_of_loss(problem, causal(4, 5));
}

TEST(Reference, GradientsMatchFiniteDifferencesWithAMaskOfItsOwnPerHeadAndBatchEntry) {
  Problem problem = single_head(5, 4, 2);
  problem.batch = 2;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.value_dim = 3;
  problem.scale = 0.7f;
  for (std::int64_t heads : {1, 2, 4}) {
    expect_gradients_of_loss(problem,
                             from_predicate({2, heads, 5, 4}, [](auto batch, auto head, auto row, auto column) {
                               return (3 * batch + 5 * head + 7 * row + 2 * column) % 3 != 0;
                             }));
  }
}

TEST(Reference, RowIsOneRowOfForward) {
  Problem problem = single_head(3, 4, 2);
  problem.batch = 2;
  problem.query_heads = 2;
  const Tensors t = random_tensors(problem, 5);
  const auto out = reference::forward(problem, causal(3, 4), t.inputs());
  const auto row = reference::row(problem, causal(3, 4), t.inputs(), 1, 1, 0);
  EXPECT_EQ(row.lse, out.lse[9]);  // (batch 1, head 1, row 0) of (2, 2, 3)
  EXPECT_EQ(row.o[0], out.o[14]);  // (batch 1, row 0, head 1) of (2, 3, 2, 2)
  EXPECT_EQ(row.p[2], 0);          // row 0 sees columns 0 and 1
  EXPECT_EQ(row.p[3], 0);
  EXPECT_NEAR(row.p[0] + row.p[1], 1, 1e-14);
}

TEST(Reference, GradScoresAddUpToTheGradientThroughLse) {
  const Problem problem = single_head(2, 4, 2);
  Tensors t = random_tensors(problem, 6);
  t.k[6] = t.v[6] = kNaN;  // column 3, which row 0 does not see
  const Mask mask = causal(2, 4);
  const auto row = reference::row(problem, mask, t.inputs(), 0, 0, 0);
  const auto ds = reference::grad_scores(problem, t.inputs(), row, 0, 0, 0, t.grad_o, t.grad_lse);
  // The softmax part of dL/dscore sums to zero over a row; what is left is dlse · ΣP.
  EXPECT_NEAR(ds[0] + ds[1] + ds[2], t.grad_lse[0], 1e-13);
  EXPECT_EQ(ds[3], 0);
}

TEST(Reference, EmptyProblemsGiveEmptyResults) {
  const Tensors none;
  const auto no_rows = reference::forward(single_head(0, 0, 2), everything(0, 0), none.inputs());
  EXPECT_TRUE(no_rows.o.empty());
  const std::vector<double> q(4, 1.0);
  const auto no_columns = reference::forward(single_head(2, 0, 2), everything(2, 0), {q, {}, {}});
  EXPECT_EQ(no_columns.o, std::vector<double>(4, 0.0));
  EXPECT_EQ(no_columns.lse, std::vector<double>(2, -kInfinity));
}

TEST(Reference, RefusesTensorsOfAnotherSize) {
  const Problem problem = single_head(2, 2, 2);
  const std::vector<double> right(4, 1.0), wrong(3, 1.0);
  const Mask mask = everything(2, 2);
  EXPECT_THROW(reference::forward(problem, mask, {wrong, right, right}), Error);
  EXPECT_THROW(reference::forward(problem, mask, {right, wrong, right}), Error);
  EXPECT_THROW(reference::forward(problem, mask, {right, right, wrong}), Error);
  EXPECT_THROW(reference::backward(problem, mask, {right, right, right}, wrong, {}), Error);
  EXPECT_THROW(reference::backward(problem, mask, {right, right, right}, right, wrong), Error);
}

TEST(Reference, RefusesAMaskOfAnotherShape) {
  const Problem problem = single_head(2, 2, 2);
  const std::vector<double> values(4, 1.0);
  EXPECT_THROW(reference::forward(problem, everything(2, 3), {values, values, values}), Error);
  EXPECT_THROW(reference::forward(problem, everything(3, 2), {values, values, values}), Error);
}

}  // namespace
}  // namespace flashmask
