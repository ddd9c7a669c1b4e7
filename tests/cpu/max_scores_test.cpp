// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kernels.h"

namespace flashmask {
namespace {

using check::AttentionTensors;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void forward_with_max_scores(const Plan& plan, const AttentionTensors& tensors, Executor* executor = nullptr) {
  ForwardTensors given = tensors.forward();
  given.max_scores = tensors.max_scores.view();
  Execution execution;
  execution.executor = executor;
  forward(plan, given, execution);
}

/// The corpus is in the tests of all kernels, which look at the largest scores too.
class MaxScores : public test::EveryLevel {
 protected:
  /// Grouped heads; with more rows than columns, the first see nothing under a causal mask.
  Problem grouped(std::int64_t rows, std::int64_t columns) const {
    Problem p = problem(rows, columns);
    p.batch = 2;
    p.query_heads = 4;
    p.kv_heads = 2;
    return p;
  }
  Plan planned(const Mask& mask, const Problem& p, PlanOptions options = {}) const {
    options.kernel = GetParam().prefix();
    options.form = GetParam().form;
    return plan(mask, p, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, MaxScores, testing::ValuesIn(test::levels()), test::level_name);

/// Scores of tile after tile of keys: the kernels' references, which follow steps of more than 8 / log2(e) = 5.5 only,
/// are 0, 0, 9, 9, 9 and 1000 after them.
constexpr float kScoresOfTiles[] = {0, 5, 9, -300, 14, 1000};
constexpr std::int64_t kTokens = 6 * 64;

TEST_P(MaxScores, AreExactWhereTheReferencesOfRowsLagBehind) {
  Problem p = problem(kTokens, kTokens);
  p.head_dim = 1;
  p.scale = 1;
  AttentionTensors tensors(p, 3);
  for (std::int64_t i = 0; i < kTokens; ++i) {
    tensors.q.set(i, 1);
    tensors.k.set(i, kScoresOfTiles[i / 64]);
  }
  forward_with_max_scores(planned(masks::causal(kTokens, kTokens), p), tensors);
  float largest = -kInfinity;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    largest = std::max(largest, kScoresOfTiles[i / 64]);
    EXPECT_NEAR(tensors.max_scores.at(i), largest, 2e-7F * largest) << "row " << i;
  }
}

TEST_P(MaxScores, OfRowsThatSeeNothingAreMinusInfinity) {
  const Problem p = grouped(200, 70);  // the first 130 rows see nothing: whole tiles, and part of one
  const AttentionTensors tensors(p, 3, check::Sinks::of_heads);
  forward_with_max_scores(planned(masks::causal(200, 70), p), tensors);
  for (std::int64_t i = 0; i < tensors.max_scores.size(); ++i)
    EXPECT_EQ(tensors.max_scores.at(i) == -kInfinity, i % 200 < 130) << i;

  const Problem empty = grouped(70, 0);
  const AttentionTensors none(empty, 3);
  forward_with_max_scores(planned(masks::full(70, 0), empty), none);
  EXPECT_TRUE(test::all_equal(none.max_scores, -kInfinity));
}

TEST_P(MaxScores, ChangeNoOtherBit) {
  const Problem p = grouped(300, 300);
  const Plan plan = planned(masks::sliding_window(300, 300, 100), p);
  const AttentionTensors with(p, 3), without(p, 3);
  forward_with_max_scores(plan, with);
  forward(plan, without.forward());
  EXPECT_TRUE(test::same_bits(with.o, without.o));
  EXPECT_TRUE(test::same_bits(with.lse, without.lse));
}

TEST_P(MaxScores, AreTheSameBitsForAnyThreadsAnySinksAndAnyDropout) {
  Problem p = grouped(300, 300);
  const AttentionTensors plain(p, 3), serial(p, 3), dropped(p, 3);
  AttentionTensors with_sinks(p, 3, check::Sinks::of_rows);
  for (std::int64_t i = 0; i < with_sinks.sinks->size(); ++i) with_sinks.sinks->set(i, 50);
  const Mask mask = masks::causal_document({70, 170, 60}, 300);
  const Plan plan = planned(mask, p);
  forward_with_max_scores(plan, plain);
  forward_with_max_scores(plan, serial, &serial_executor());
  EXPECT_TRUE(test::same_bits(plain.max_scores, serial.max_scores));
  forward_with_max_scores(plan, with_sinks);
  EXPECT_TRUE(test::same_bits(plain.max_scores, with_sinks.max_scores));
  p.dropout = 0.5;
  forward_with_max_scores(planned(mask, p), dropped);
  EXPECT_TRUE(test::same_bits(plain.max_scores, dropped.max_scores));
}

TEST_P(MaxScores, OfAnInvariantPlanAreThoseOfADocumentAlone) {
  const PlanOptions invariant{.invariant = true};
  const Problem packed = problem(300, 300), alone = problem(170, 170);
  const AttentionTensors all(packed, 3);
  AttentionTensors one(alone, 3);
  const std::int64_t begin = 70 * packed.head_dim;
  for (std::int64_t i = 0; i < one.q.size(); ++i) {
    one.q.set(i, all.q.at(begin + i));
    one.k.set(i, all.k.at(begin + i));
  }
  forward_with_max_scores(planned(masks::causal_document({70, 170, 60}, 300), packed, invariant), all);
  forward_with_max_scores(planned(masks::causal(170, 170), alone, invariant), one);
  for (std::int64_t i = 0; i < 170; ++i) EXPECT_EQ(one.max_scores.at(i), all.max_scores.at(70 + i)) << i;
}

void expect_refused(const Plan& plan, const ForwardTensors& tensors, Status status, const std::string& sentence) {
  try {
    forward(plan, tensors);
    ADD_FAILURE() << "expected: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status);
    EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
  }
}

TEST(MaxScoresRefusals, NameWhatIsWrong) {
  Problem p;
  p.query_length = p.key_length = 100;
  p.head_dim = p.value_dim = 16;
  const AttentionTensors tensors(p, 3);
  ForwardTensors given = tensors.forward();
  given.max_scores = tensors.max_scores.view();
  const Plan causal = plan(masks::causal(100, 100), p);
  given.max_scores.data = tensors.lse.view().data;
  expect_refused(causal, given, Status::invalid_argument, "max_scores: its memory overlaps that of lse");
  given.max_scores.shape[2] = 99;
  expect_refused(causal, given, Status::invalid_argument, "max_scores: shape is (1, 1, 99); expected (1, 1, 100)");
}

}  // namespace
}  // namespace flashmask
