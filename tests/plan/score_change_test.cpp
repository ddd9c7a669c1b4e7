// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_change.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/problem.h"
#include "kit/random_numbers.h"

namespace flashmask {
namespace {

using namespace scores;

TEST(ScoreChange, IsWrittenAsItsSteps) {
  EXPECT_EQ(ScoreChange().text(), "");
  EXPECT_EQ((softcap(50) | alibi()).text(), "softcap(50) | alibi");
  EXPECT_EQ((bias() | softcap(0.1) | multiply(-1e-7)).text(), "bias | softcap(0.1) | multiply(-1e-07)");
}

TEST(ScoreChange, ReadsWhatItWrites) {
  for (const ScoreChange& change : {ScoreChange(), multiply(1.0 / 3), softcap(50) | distance(),
                                    multiply(2) | softcap(0.1) | multiply(-3) | bias() | softcap(7)}) {
    EXPECT_EQ(ScoreChange::parse(change.text()), change) << change.text();
  }
  EXPECT_EQ(ScoreChange::parse("  softcap( 50 )|alibi "), softcap(50) | alibi());
}

TEST(ScoreChange, EqualChangesHaveEqualText) {
  EXPECT_EQ((multiply(2) | multiply(3)).text(), "multiply(6)");
  EXPECT_EQ(softcap(5) | multiply(2) | multiply(0.5) | alibi(), softcap(5) | alibi());
  EXPECT_EQ((softcap(5) | (multiply(2) | bias())).text(), "softcap(5) | multiply(2) | bias");
  EXPECT_EQ(multiply(1), ScoreChange());
}

TEST(ScoreChange, RefusesWhatItIsNot) {
  const auto refused = [](const std::string& text, const std::string& message) {
    try {
      ScoreChange::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      EXPECT_EQ(error.status(), Status::invalid_argument);
    }
  };
  refused("softcap", "\"softcap\" is no step of a change; expected steps such as");
  refused("softcap(1) | sigmoid(2)", "\"sigmoid(2)\" is no step");
  for (const char* text : {"alibi(1)", "softcap(1", "softcap()", "softcap(1x)", "softcap(nan)", "|"})
    refused(text, "is no step");
  refused("softcap(1) |", "nothing follows the last \"|\"");
  refused("softcap(-1)", "softcap is -1; expected a number from 1e-30 to 1e30");
  refused("multiply(0)", "multiply is 0; expected a number from 1e-30 to 1e30, or one below 0 of that size");
  refused("multiply(1e20) | multiply(1e20)", "multiply is 1e+40");
  refused("alibi | softcap(1) | bias", "a change adds two biases, alibi | softcap(1) and then bias; scores take one");
  std::string text = "softcap(1)";
  for (int i = 0; i < 8; ++i) text += " | softcap(1)";
  refused(text, "more than 8 steps");
}

/// The values by hand: 4 · 0.5 = 2, 3 tanh(2 / 3), and so on.
TEST(ScoreChange, TakesItsStepsInOrder) {
  const ScoreChange change = multiply(0.5) | softcap(3) | multiply(2) | bias() | softcap(4);
  EXPECT_EQ(change.factor(), 0.5);
  EXPECT_NEAR(change.apply(4 * change.factor(), {.bias = 7}).value, 4 * std::tanh((2 * 3 * std::tanh(2.0 / 3) + 7) / 4),
              1e-14);
  EXPECT_EQ(ScoreChange().apply(4, {.bias = 7}).value, 4);
}

TEST(ScoreChange, HasTheSlopesOfFiniteDifferences) {
  check::RandomNumbers random(1);
  for (const char* text : {"softcap(2) | bias", "bias | softcap(3) | multiply(0.7)", "multiply(-1.5) | alibi",
                           "softcap(2) | multiply(3) | distance | softcap(5) | multiply(-2) | softcap(4)"}) {
    const ScoreChange change = ScoreChange::parse(text);
    for (int i = 0; i < 20; ++i) {
      const double score = random.normal(), bias = random.normal(), step = 1e-6;
      const ScoreChange::Changed changed = change.apply(score, {.bias = bias});
      const auto value = [&](double s, double b) { return change.apply(s, {.bias = b}).value; };
      EXPECT_NEAR(changed.slope, (value(score + step, bias) - value(score - step, bias)) / (2 * step), 1e-8) << text;
      EXPECT_NEAR(changed.bias_slope, (value(score, bias + step) - value(score, bias - step)) / (2 * step), 1e-8)
          << text;
    }
  }
}

TEST(ScoreChange, ItsFactorsAreThoseBehindTheFirstAndThoseBehindTheBias) {
  const ScoreChange change = multiply(7) | softcap(3) | multiply(2) | bias() | multiply(5);
  EXPECT_EQ(change.later_factors(), 10);
  EXPECT_EQ(change.bias_factors(), 5);
  EXPECT_EQ((softcap(3) | multiply(2) | bias()).bias_factors(), 1);
}

TEST(ScoreChange, ItsFirstFactorBelongsToTheScale) {
  Problem problem;
  problem.head_dim = 16;
  problem.change = multiply(3) | softcap(2) | multiply(5);
  EXPECT_EQ(problem.softmax_scale(), 0.75);
  problem.scale = 2;
  EXPECT_EQ(problem.softmax_scale(), 6);
}

}  // namespace
}  // namespace flashmask
