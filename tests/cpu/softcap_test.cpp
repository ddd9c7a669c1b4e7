// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "flashmask/builders.h"
#include "kernels.h"
#include "kit/error_bound.h"

/// What the corpus' random scores do not show; flashmask check holds those against the reference.
namespace flashmask {
namespace {

class Softcap : public test::EveryLevel {
 protected:
  Problem capped(double softcap) const {
    Problem p = problem(200, 200);
    p.change = scores::softcap(softcap);
    p.scale = 1.0F;
    return p;
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Softcap, testing::ValuesIn(test::levels()), test::level_name);

/// All scores are equal, so that an error of the cap cannot average out: lse is the score and the logarithm of how many
/// a row sees.
TEST_P(Softcap, EqualScoresHaveTheirLse) {
  for (const float score : {-90.0F, -8.0F, -0.5F, 0.0F, 3.0F, 40.0F, 1e4F}) {
    SCOPED_TRACE(score);
    const Problem p = capped(50);
    check::AttentionTensors tensors(p, 3);
    for (std::int64_t i = 0; i < tensors.q.size(); ++i) tensors.q.set(i, i % p.head_dim == 0 ? 1.0F : 0.0F);
    for (std::int64_t i = 0; i < tensors.k.size(); ++i) tensors.k.set(i, i % p.head_dim == 0 ? score : 0.0F);
    const double held = tensors.k.at(0);  // as the dtype rounds it
    test::attend(plan(masks::causal(200, 200), p, test::forced(GetParam())), tensors);
    for (std::int64_t row = 0; row < 200; ++row) {
      const double expected = 50 * std::tanh(held / 50) + std::log(static_cast<double>(row + 1));
      ASSERT_LE(check::compare_lse(p.dtype, tensors.lse.at(row), expected).ratio(), 1) << "row " << row;
    }
  }
}

/// Far beyond the cap every score is the cap: o is the mean of the values that a row sees, and queries and keys have no
/// effect.
TEST_P(Softcap, ScoresFarBeyondTheCapHaveNoGradient) {
  const Problem p = capped(0.01);
  check::AttentionTensors tensors(p, 4);
  for (std::int64_t i = 0; i < tensors.q.size(); ++i) tensors.q.set(i, 4);
  for (std::int64_t i = 0; i < tensors.k.size(); ++i) tensors.k.set(i, 4);
  for (std::int64_t i = 0; i < tensors.grad_lse.size(); ++i) tensors.grad_lse.set(i, 0);
  test::attend(plan(masks::causal(200, 200), p, test::forced(GetParam())), tensors);
  double sum = 0;
  for (std::int64_t row = 0; row < 200; ++row) {
    sum += tensors.v.at(row * p.value_dim);
    EXPECT_NEAR(tensors.o.at(row * p.value_dim), sum / static_cast<double>(row + 1), 0.02);
  }
  for (std::int64_t i = 0; i < tensors.grad_q.size(); ++i) ASSERT_NEAR(tensors.grad_q.at(i), 0, 1e-4);
  for (std::int64_t i = 0; i < tensors.grad_k.size(); ++i) ASSERT_NEAR(tensors.grad_k.at(i), 0, 1e-4);
}

TEST_P(Softcap, VisitingEveryTileChangesNoBit) {
  const Problem p = capped(2);
  const Mask mask = masks::sliding_window(200, 200, 50);
  const check::AttentionTensors skipping(p, 5), visiting(p, 5);
  test::attend(plan(mask, p, test::forced(GetParam())), skipping);
  test::attend(plan(mask, p, test::forced(GetParam(), Visit::all)), visiting);
  test::expect_same_results(skipping, visiting);
}

}  // namespace
}  // namespace flashmask
