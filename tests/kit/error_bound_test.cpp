// SPDX-License-Identifier: Apache-2.0
#include "kit/error_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "flashmask/builders.h"
#include "kit/naive_attention.h"
#include "kit/random_numbers.h"
#include "kit/rounding.h"

namespace flashmask::check {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ErrorBound, IsTwiceTheNaiveErrorAndTheRoundingAndATrace) {
  ErrorBound bound(DType::bf16);
  bound.add(1.5, 1.0, 1.125);
  bound.add(-3.0, -4.0, -4.25);
  const Comparison result = bound.result();
  EXPECT_EQ(result.error, 1.0);
  // In bfloat16 1.3 is 1.296875, which less 0.3 is 0.99609375; -4 comes back as it was.
  EXPECT_NEAR(result.bound, 2 * 0.25 + 2 * 0.00390625 + 1e-5 * 4, 1e-12);
}

TEST(ErrorBound, CountsWhatTheDtypeLosesNearTheReference) {
  ErrorBound bound(DType::bf16);
  bound.add(0, 1.0 / 1024, 1.0 / 1024);  // 0.3 + 1/1024 is a multiple of 1/512 in bfloat16
  EXPECT_GT(bound.result().bound, 1e-5 + 1e-4);
}

TEST(ErrorBound, ANanIsInfinitelyWrong) {
  ErrorBound bound(DType::f32);
  bound.add(kNan, 1, 1);
  EXPECT_EQ(bound.result().ratio(), kInfinity);
}

TEST(ErrorBound, OfLseIsRelativeToItsSize) {
  EXPECT_LE(compare_lse(DType::f32, 100.0009, 100).ratio(), 1);
  EXPECT_GT(compare_lse(DType::f32, 100.0011, 100).ratio(), 1);
  EXPECT_LE(compare_lse(DType::f16, 0.0009, 0).ratio(), 1);
  EXPECT_GT(compare_lse(DType::bf16, 0.0011, 0).ratio(), 1);
}

TEST(ErrorBound, OfLseTakesMinusInfinityOnlyForMinusInfinity) {
  EXPECT_EQ(compare_lse(DType::f32, -kInfinity, -kInfinity).error, 0);
  EXPECT_EQ(compare_lse(DType::f32, 0, -kInfinity).ratio(), kInfinity);
  EXPECT_EQ(compare_lse(DType::f32, -kInfinity, 0).ratio(), kInfinity);
  EXPECT_EQ(compare_lse(DType::f32, kNan, -kInfinity).ratio(), kInfinity);
}

/// A problem with grouped heads and unequal dims, its inputs rounded to the dtype.
struct Example {
  explicit Example(DType dtype) {
    problem.batch = 2;
    problem.query_length = problem.key_length = 9;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 5;
    problem.value_dim = 3;
    problem.dtype = dtype;
    RandomNumbers random(3);
    const auto fill = [&](std::vector<double>& values, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) values.push_back(round_to(dtype, random.normal()));
    };
    fill(q, std::size_t{2} * 9 * 4 * 5);
    fill(k, std::size_t{2} * 9 * 2 * 5);
    fill(v, std::size_t{2} * 9 * 2 * 3);
    fill(grad_o, std::size_t{2} * 9 * 4 * 3);
    fill(grad_lse, std::size_t{2} * 4 * 9);
  }

  Problem problem;
  std::vector<double> q, k, v, grad_o, grad_lse;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// The largest differences from the reference of the naive computation's four results.
double naive_error(DType dtype) {
  const Example e(dtype);
  const std::vector<std::int64_t> documents = {5, 3};  // and an empty row
  const Mask mask = masks::causal_document(documents, 9);
  const reference::Inputs inputs{e.q, e.k, e.v};
  const auto outputs = reference::forward(e.problem, mask, inputs);
  const auto gradients = reference::backward(e.problem, mask, inputs, e.grad_o, e.grad_lse);
  const auto naive = naive::attend(e.problem, mask, inputs, e.grad_o, e.grad_lse);
  return std::max({largest_difference(naive.o, outputs.o), largest_difference(naive.grad_q, gradients.q),
                   largest_difference(naive.grad_k, gradients.k), largest_difference(naive.grad_v, gradients.v)});
}

TEST(NaiveAttention, IsTheReferenceUpToItsDtype) {
  EXPECT_LT(naive_error(DType::f32), 1e-5);
  EXPECT_LT(naive_error(DType::f16), 1e-2);
  EXPECT_LT(naive_error(DType::bf16), 1e-1);
}

TEST(NaiveAttention, LosesWhatItsDtypeLoses) {
  EXPECT_GT(naive_error(DType::f16), 1e-4);
  EXPECT_GT(naive_error(DType::bf16), 4 * naive_error(DType::f16));
}

}  // namespace
}  // namespace flashmask::check
