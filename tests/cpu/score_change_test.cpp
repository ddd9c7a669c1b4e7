// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_change.h"

#include <limits>

#include "flashmask/builders.h"
#include "kernels.h"

/// What the corpus' chains of steps do not show; flashmask check holds those against the reference.
namespace flashmask {
namespace {

class ChangedScores : public test::EveryLevel {
 protected:
  check::AttentionTensors attended(const Mask& mask, const Problem& p) const {
    check::AttentionTensors tensors(p, 3);
    test::attend(plan(mask, p, test::forced(GetParam())), tensors);
    return tensors;
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, ChangedScores, testing::ValuesIn(test::levels()), test::level_name);

/// Capped behind the bias, a score of −∞ or NaN would be a number again.
TEST_P(ChangedScores, BiasesThatTheMaskHidesMayBeNaN) {
  Problem p = problem(150, 150);
  p.change = scores::bias() | scores::softcap(2);
  check::AttentionTensors tensors(p, 3), poisoned(p, 3);
  for (std::int64_t row = 0; row < 150; ++row)
    for (std::int64_t column = row + 1; column < 150; ++column)
      poisoned.bias->set(row * 150 + column, std::numeric_limits<float>::quiet_NaN());
  const Plan planned = plan(masks::causal(150, 150), p, test::forced(GetParam()));
  test::attend(planned, tensors);
  test::attend(planned, poisoned);
  test::expect_same_results(tensors, poisoned);
  EXPECT_TRUE(test::same_bits(*tensors.grad_bias, *poisoned.grad_bias));
  EXPECT_TRUE(test::all_finite(tensors.grad_q));
}

TEST_P(ChangedScores, AFirstFactorIsTheScales) {
  Problem scaled = problem(100, 150), multiplied = scaled;
  scaled.scale = 0.5;
  multiplied.scale = 0.25;
  multiplied.change = scores::multiply(2);
  const Mask mask = masks::causal(100, 150);
  test::expect_same_results(attended(mask, scaled), attended(mask, multiplied));
}

TEST_P(ChangedScores, VisitingEveryTileChangesNoBit) {
  Problem p = problem(200, 200);
  p.change = ScoreChange::parse("softcap(3) | multiply(2) | distance | softcap(1.5) | multiply(-1)");
  const Mask mask = masks::sliding_window(200, 200, 50);
  const check::AttentionTensors skipping(p, 5), visiting(p, 5);
  test::attend(plan(mask, p, test::forced(GetParam())), skipping);
  test::attend(plan(mask, p, test::forced(GetParam(), Visit::all)), visiting);
  test::expect_same_results(skipping, visiting);
  EXPECT_TRUE(test::same_bits(*skipping.grad_bias, *visiting.grad_bias));
}

}  // namespace
}  // namespace flashmask
