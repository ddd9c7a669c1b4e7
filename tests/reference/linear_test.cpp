// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/nodes.h"
#include "flashmask/reference.h"

namespace flashmask {
namespace {

using reference::LinearGradients;
using reference::LinearInputs;
using reference::LinearOutputs;
using Vector = std::vector<double>;

/// The values of one call; log_scale stays fixed where a derivative is taken.
struct Values {
  Vector q, k, v, log_forget, log_input, state, normalizer, log_scale;

  LinearInputs inputs() const { return {q, k, v, log_forget, log_input, state, normalizer, log_scale}; }
};

Vector normal(std::size_t count, std::mt19937& random, double deviation = 1, double mean = 0) {
  std::normal_distribution<double> draw(mean, deviation);
  Vector numbers(count);
  for (double& x : numbers) x = draw(random);
  return numbers;
}

std::size_t roots_of(const Mask& mask) {
  const Nodes found = nodes(mask);
  return static_cast<std::size_t>(std::count(found.parents.begin(), found.parents.end(), -1));
}

LinearProblem small_problem(std::int64_t length, bool normalize) {
  LinearProblem p;
  p.batch = 1;
  p.length = length;
  p.heads = 4;
  p.key_heads = 2;
  p.key_dim = 3;
  p.value_dim = 5;
  p.normalize = normalize;
  return p;
}

Values draw(const LinearProblem& p, const Mask& mask, std::mt19937& random) {
  const auto tokens = static_cast<std::size_t>(p.batch * p.length), roots = roots_of(mask);
  const auto heads = static_cast<std::size_t>(p.heads), key_heads = static_cast<std::size_t>(p.key_heads);
  const auto key_dim = static_cast<std::size_t>(p.key_dim), value_dim = static_cast<std::size_t>(p.value_dim);
  Values all{normal(tokens * key_heads * key_dim, random),
             normal(tokens * key_heads * key_dim, random),
             normal(tokens * heads * value_dim, random),
             normal(tokens * heads, random),
             normal(tokens * heads, random, 2),
             normal(roots * heads * key_dim * value_dim, random),
             p.normalize ? normal(roots * heads * key_dim, random) : Vector(),
             normal(roots * heads, random)};
  for (double& x : all.log_forget) x = -std::abs(x);
  for (double& x : all.log_scale) x = std::abs(x);
  return all;
}

/// The log of W(i, j), from who sees whom alone: the gates of the tokens after j that i sees and that see j.
double log_weight(const Mask& mask, const LinearProblem& p, const Values& x, std::int64_t h, std::int64_t i,
                  std::int64_t j) {
  double sum = x.log_input[static_cast<std::size_t>(j * p.heads + h)];
  for (std::int64_t t = j + 1; t <= i; ++t)
    if (mask.visible(0, 0, i, t) && mask.visible(0, 0, t, j))
      sum += x.log_forget[static_cast<std::size_t>(t * p.heads + h)];
  return sum;
}

/// o by the quadratic form, without initial states.
Vector quadratic(const Mask& mask, const LinearProblem& p, const Values& x) {
  Vector o(x.v.size());
  const std::int64_t group = p.heads / p.key_heads;
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t i = 0; i < p.length; ++i) {
      double sum = 0;
      double* row = &o[static_cast<std::size_t>((i * p.heads + h) * p.value_dim)];
      for (std::int64_t j = 0; j < p.length; ++j) {
        if (!mask.visible(0, 0, i, j)) continue;
        double score = 0;
        for (std::int64_t d = 0; d < p.key_dim; ++d)
          score += x.q[static_cast<std::size_t>((i * p.key_heads + h / group) * p.key_dim + d)] *
                   x.k[static_cast<std::size_t>((j * p.key_heads + h / group) * p.key_dim + d)];
        const double weight = std::exp(log_weight(mask, p, x, h, i, j)) * p.query_scale() * score;
        sum += weight;
        for (std::int64_t c = 0; c < p.value_dim; ++c)
          row[c] += weight * x.v[static_cast<std::size_t>((j * p.heads + h) * p.value_dim + c)];
      }
      for (std::int64_t c = 0; p.normalize && c < p.value_dim; ++c) row[c] /= std::max(std::abs(sum), 1.0);
    }
  return o;
}

double worst(const Vector& a, const Vector& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, largest = 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    error = std::max(error, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : HUGE_VAL);
    largest = std::max(largest, std::abs(b[i]));
  }
  return error / largest;
}

/// Masks that are trees: a document, documents with padding, a prompt with answers, a deeper tree beside a document.
std::vector<Mask> trees() {
  return {masks::causal(23, 23), masks::causal_document({5, 1, 9}, 18),
          masks::shared_question({{4, {3, 1, 5}}, {2, {2, 2}}}, 20),
          masks::tree({-1, 0, 0, 2, 2, -1}, {5, 3, 4, 2, 3, 6}, 24).mask};
}

class LinearReference : public testing::TestWithParam<bool> {};

TEST_P(LinearReference, EqualsTheQuadraticFormOfWhatTheMaskSees) {
  std::mt19937 random(1);
  for (const Mask& mask : trees()) {
    const LinearProblem p = small_problem(mask.shape().rows, GetParam());
    Values x = draw(p, mask, random);
    x.state.clear(), x.normalizer.clear(), x.log_scale.clear();
    EXPECT_LT(worst(reference::linear_forward(p, mask, x.inputs()).o, quadratic(mask, p, x)), 1e-12)
        << mask.description();
  }
}

/// Checks derivatives of Σ grad · outputs, with `grad` for o, final states and normalisers.
class Derivatives {
 public:
  Derivatives(const LinearProblem& p, const Mask& mask, Values& x, std::mt19937& random)
      : p_(p), mask_(mask), x_(x), random_(random) {
    const LinearOutputs out = reference::linear_forward(p, mask, x.inputs());
    grad_o_ = normal(out.o.size(), random);
    grad_state_ = normal(out.state.size(), random);
    grad_normalizer_ = normal(out.normalizer.size(), random);
  }

  LinearGradients gradients() const {
    return reference::linear_backward(p_, mask_, x_.inputs(), grad_o_, grad_state_, grad_normalizer_);
  }

  void expect(const char* name, Vector& values, const Vector& gradient) {
    ASSERT_EQ(values.size(), gradient.size()) << name;
    double largest = 1;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    for (int turn = 0; turn < 10 && !values.empty(); ++turn) {
      const std::size_t i = random_() % values.size();
      constexpr double kStep = 1e-5;
      const double value = values[i];
      values[i] = value + kStep;
      const double above = loss();
      values[i] = value - kStep;
      const double below = loss();
      values[i] = value;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-7 * largest) << name << " " << i;
    }
  }

 private:
  /// The scale of a state is no variable: what is differentiated is what the state stands for, in a fixed scale.
  double loss() const {
    const LinearOutputs out = reference::linear_forward(p_, mask_, x_.inputs());
    if (scale_.empty()) scale_ = out.log_scale;
    double sum = 0;
    for (std::size_t i = 0; i < out.o.size(); ++i) sum += grad_o_[i] * out.o[i];
    const auto add = [&](const Vector& gradient, const Vector& values) {
      const std::size_t each = values.empty() ? 1 : values.size() / out.log_scale.size();
      for (std::size_t i = 0; i < values.size(); ++i)
        sum += gradient[i] * values[i] * std::exp(out.log_scale[i / each] - scale_[i / each]);
    };
    add(grad_state_, out.state);
    add(grad_normalizer_, out.normalizer);
    return sum;
  }

  const LinearProblem& p_;
  const Mask& mask_;
  Values& x_;
  std::mt19937& random_;
  Vector grad_o_, grad_state_, grad_normalizer_;
  mutable Vector scale_;
};

TEST_P(LinearReference, GradientsAreThoseOfFiniteDifferences) {
  std::mt19937 random(2);
  for (const Mask& mask : trees()) {
    const LinearProblem p = small_problem(mask.shape().rows, GetParam());
    Values x = draw(p, mask, random);
    Derivatives check(p, mask, x, random);
    const LinearGradients gradient = check.gradients();
    check.expect("q", x.q, gradient.q);
    check.expect("k", x.k, gradient.k);
    check.expect("v", x.v, gradient.v);
    check.expect("log_forget", x.log_forget, gradient.log_forget);
    check.expect("log_input", x.log_input, gradient.log_input);
    check.expect("state", x.state, gradient.state);
    check.expect("normalizer", x.normalizer, gradient.normalizer);
  }
}

TEST_P(LinearReference, TwoCallsWithAStateBetweenEqualOne) {
  std::mt19937 random(3);
  constexpr std::int64_t kLength = 21, kCut = 8;
  const LinearProblem whole = small_problem(kLength, GetParam());
  const Values x = draw(whole, masks::causal(kLength, kLength), random);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const auto of = [&](const Vector& all) {
      const std::int64_t width = std::ssize(all) / kLength;
      return Vector(all.begin() + begin * width, all.begin() + end * width);
    };
    return Values{of(x.q), of(x.k), of(x.v), of(x.log_forget), of(x.log_input), {}, {}, {}};
  };
  Values front = part(0, kCut), back = part(kCut, kLength);
  front.state = x.state, front.normalizer = x.normalizer, front.log_scale = x.log_scale;
  const auto run = [&](const Values& values, std::int64_t length) {
    return reference::linear_forward(small_problem(length, GetParam()), masks::causal(length, length), values.inputs());
  };
  const LinearOutputs first = run(front, kCut), all = run(x, kLength);
  back.state = first.state, back.normalizer = first.normalizer, back.log_scale = first.log_scale;
  const LinearOutputs second = run(back, kLength - kCut);
  Vector joined = first.o;
  joined.insert(joined.end(), second.o.begin(), second.o.end());
  EXPECT_LT(worst(joined, all.o), 1e-12);
  EXPECT_LT(worst(second.state, all.state), 1e-12);
  EXPECT_LT(worst(second.log_scale, all.log_scale), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(PlainAndNormalized, LinearReference, testing::Bool());

std::string refusal(const Mask& mask, const LinearProblem& p) {
  try {
    std::mt19937 random(4);
    const Vector none;
    (void)reference::linear_forward(p, mask, {none, none, none});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LinearReferenceRefusals, NameWhatDoesNotFit) {
  EXPECT_NE(
      refusal(masks::sliding_window(8, 8, 3), small_problem(8, false)).find("linear_attention: nodes: batch entry 0"),
      std::string::npos);
  EXPECT_NE(refusal(masks::causal(8, 8), small_problem(9, false)).find("expected batch 1 or 1, and 9 rows and columns"),
            std::string::npos);
  LinearProblem odd = small_problem(8, false);
  odd.heads = 3;
  EXPECT_NE(refusal(masks::causal(8, 8), odd).find("heads is 3; expected a multiple of key_heads, which is 2"),
            std::string::npos);
  EXPECT_NE(refusal(masks::causal(8, 8), small_problem(8, false)).find("q holds 0 elements; the problem needs 48"),
            std::string::npos);
}

}  // namespace
}  // namespace flashmask
