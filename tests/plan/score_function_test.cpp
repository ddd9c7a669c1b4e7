// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_function.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/score_change.h"
#include "kit/random_numbers.h"
#include "plan/score_functions.h"

namespace flashmask {
namespace {

TEST(ScoreFunction, IsWrittenAsItIsRead) {
  for (const char* text : test::kScoreFunctions) {
    const ScoreChange change = ScoreChange::parse(text);
    EXPECT_EQ(ScoreChange::parse(change.text()), change) << text;
    EXPECT_EQ(ScoreChange::parse(change.text()).text(), change.text()) << text;
  }
  EXPECT_EQ(ScoreFunction::parse(" mul( score,score )").text(), "mul(score, score)");
  EXPECT_EQ(ScoreFunction::parse("$x = exp(score); $y = mul($x, $x); add($y, $y)").text(),
            "$0 = exp(score); $1 = mul($0, $0); add($1, $1)");
}

TEST(ScoreFunction, ComputesConstantsAtOnce) {
  EXPECT_EQ(ScoreFunction::parse("mul(score, add(1, 2))").text(), "mul(score, 3)");
  EXPECT_EQ(ScoreFunction::parse("add(mul(score, 1), 0)").text(), "score");
  EXPECT_EQ(ScoreFunction::parse("sub(score, log(1))"), ScoreFunction::parse("score"));
}

TEST(ScoreFunction, TakesInTheStepsBesideIt) {
  EXPECT_EQ(ScoreChange::parse("softcap(5) | function(mul(score, score)) | multiply(2) | bias").text(),
            "function($0 = mul(5, tanh(div(score, 5))); add(mul(mul($0, $0), 2), bias))");
  EXPECT_EQ(ScoreChange::parse("multiply(2) | function(exp(score))").factor(), 2);
  EXPECT_EQ(ScoreChange::parse("function(exp(score)) | function(neg(score))").text(), "function(neg(exp(score)))");
  EXPECT_EQ(ScoreChange::parse("function(mul(score, bias))").bias(), ScoreBias::tensor);
  EXPECT_EQ(ScoreChange::parse("function(mul(score, distance))").bias(), ScoreBias::distances);
}

/// Against differences of values.
TEST(ScoreFunction, KnowsItsDerivatives) {
  check::RandomNumbers random(5);
  const std::vector<double> numbers(6, 0.25);
  const ScoreOperand operand{numbers, {2, 3}};
  const std::vector<ScoreOperand> operands{operand};
  const char* const functions[] = {"mul(score, mul(bias, score))",
                                   "tanh(mul(score, bias))",
                                   "exp(mul(0.1, add(score, bias)))",
                                   "div(bias, add(2, mul(score, score)))",
                                   "sqrt(add(4, sin(add(score, cos(bias)))))",
                                   "log(add(2, max(sub(score, bias), at(0, b, h))))",
                                   "where(lt(score, bias), abs(score), min(neg(score), mul(3, bias)))"};
  for (const char* text : functions) {
    const ScoreFunction function = ScoreFunction::parse(text);
    for (int n = 0; n < 50; ++n) {
      const double score = random.normal(), bias = random.normal(), step = 1e-6;
      const auto value = [&](double s, double x) { return function.apply(s, {x, 0, 1, 2, 3, operands}).value; };
      const auto found = function.apply(score, {bias, 0, 1, 2, 3, operands});
      const double by_score = (value(score + step, bias) - value(score - step, bias)) / (2 * step);
      const double by_bias = (value(score, bias + step) - value(score, bias - step)) / (2 * step);
      EXPECT_NEAR(found.slope, by_score, 1e-6 * std::max(1.0, std::abs(by_score))) << text;
      EXPECT_NEAR(found.bias_slope, by_bias, 1e-6 * std::max(1.0, std::abs(by_bias))) << text;
    }
  }
}

TEST(ScoreFunction, CutsIndicesOff) {
  const std::vector<double> numbers{10, 20, 30};
  const std::vector<ScoreOperand> operands{{numbers, {3}}};
  const auto entry = [&](const char* index) {
    return ScoreFunction::parse(std::string("add(score, at(0, ") + index + "))")
        .apply(0, {0, 0, 0, 0, 1, operands})
        .value;
  };
  EXPECT_EQ(entry("1.9"), 20);
  EXPECT_EQ(entry("-4"), 10);
  EXPECT_EQ(entry("7"), 30);
  EXPECT_EQ(entry("div(k, 0)"), 30);
}

TEST(ScoreFunction, KnowsWhatItDependsOn) {
  const auto by_distance = [](const char* text) { return ScoreFunction::parse(text).is_by_distance(); };
  EXPECT_TRUE(by_distance("mul(score, cos(sub(q, k)))"));
  EXPECT_TRUE(by_distance("where(lt(q, k), score, at(0, h))"));
  EXPECT_FALSE(by_distance("mul(score, q)"));
  EXPECT_FALSE(by_distance("mul(score, sub(q, at(0, k)))"));
  EXPECT_FALSE(ScoreFunction::parse("mul(score, score)").locates());
  EXPECT_TRUE(ScoreFunction::parse("mul(score, h)").locates());
}

TEST(ScoreFunction, RefusesWhatItIsNot) {
  const auto refused = [](const std::string& text, const std::string& message) {
    try {
      ScoreFunction::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      EXPECT_EQ(error.status(), Status::invalid_argument);
    }
  };
  refused("mul(q, k)", "the new score does not depend on the score");
  refused("mul(score, 0)", "the new score does not depend on the score");
  refused("sort(score)", "expected a number, score, bias");
  refused("mul(score)", "mul takes 2 arguments, and has 1");
  refused("mul(score, 2", "expected \")\"");
  refused("score score", "expected nothing behind the value");
  refused("lt(score, 2)", "a function's value is a condition");
  refused("where(score, score, 2)", "argument 1 of where is a number; expected a condition");
  refused("add(score, lt(q, k))", "argument 2 of add is a condition; expected a number");
  refused("add(score, at(4, q))", "expected the number of an operand, 0 to 3");
  refused("add(score, at(1, q))", "operand 0 is not read");
  refused("add(score, add(at(0, q), at(0, q, k)))", "operand 0 is read at 1 and at 2 indices");
  refused("add(score, add(bias, distance))", "a function reads bias and distance");
  refused("add(score, sub(inf, inf))", "a constant of a function is not a number");
  refused("$a = q; $a = k; score", "$a has a value already");
  refused(std::string(300, '(') + "score", "is not understood");
  refused("mul(score,\n  sort(score))", "at character 14: expected a number, score");
  refused("mul(score, sort(score))", "\n  mul(score, sort(score))\n             ^");
  refused("add(score, lt(q, k))", "\n  add(score, lt(q, k))\n  ^");
  refused("add(" + std::string(100, '1') + "0, sort(score))",
          std::string(45, '1') + "0, sort(score))\n" + std::string(53, ' ') + "^");
  std::string deep = "score", many = "score", wide = "score";
  for (int i = 0; i < 300; ++i) deep = "neg(exp(" + deep + "))";
  refused(deep, "it is nested more than 256 deep");
  for (int i = 0; i < 100; ++i) many = "sin(add(" + many + ", " + std::to_string(i) + "))";
  refused(many, "a function has more than 192 operations");
  for (int i = 0; i < 20; ++i) wide = "add(" + wide + ", mul(sin(mul(q, " + std::to_string(i + 3) + ")), score))";
  refused(wide, "more than 12 values of queries, or of keys, that meet others");
  EXPECT_THROW(ScoreChange::parse("alibi | function(score)"), Error);
  EXPECT_THROW(ScoreChange::parse("bias | function(mul(score, bias))"), Error);
}

}  // namespace
}  // namespace flashmask
