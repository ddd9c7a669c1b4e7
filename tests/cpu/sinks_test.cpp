// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/merge.h"
#include "flashmask/reorder.h"
#include "kernels.h"
#include "kit/kernel_check.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string kind_of(const testing::TestParamInfo<check::Sinks>& info) {
  constexpr std::array<const char*, 4> kNames = {"none", "of_heads", "narrow_of_heads", "of_rows"};
  return kNames.at(static_cast<std::size_t>(info.param));
}

class EveryKernelWithSinks : public testing::TestWithParam<check::Sinks> {};

TEST_P(EveryKernelWithSinks, StaysWithinTheBoundOnTheCorpus) {
  check::CheckRequest request;
  request.device = Device{};
  request.sinks = GetParam();
  request.quick = true;
  if (test::small_tests()) request.dtype = DType::bf16;
  for (const check::KernelVerdict& verdict : check::check_kernels(request))
    EXPECT_TRUE(verdict.passes()) << verdict.kernel << ": " << verdict.worst << " times the bound, " << verdict.where;
}

INSTANTIATE_TEST_SUITE_P(Cpu, EveryKernelWithSinks, testing::Values(check::Sinks::of_heads, check::Sinks::of_rows),
                         kind_of);

/// Tokens that see their neighbours in an order that is not theirs.
Mask scrambled_band(std::int64_t tokens) {
  const auto place = [=](std::int64_t token) { return token * 37 % tokens; };
  return from_predicate({1, 1, tokens, tokens},
                        [=](auto, auto, auto row, auto column) { return std::abs(place(row) - place(column)) < 5; });
}

class Sinks : public test::EveryLevel {
 protected:
  /// Grouped heads; with more rows than columns, the first see nothing under a causal mask.
  Problem grouped(std::int64_t rows, std::int64_t columns) const {
    Problem p = problem(rows, columns);
    p.batch = 2;
    p.query_heads = 4;
    p.kv_heads = 2;
    return p;
  }
  Plan planned(const Mask& mask, const Problem& p) const { return plan(mask, p, test::forced(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Sinks, testing::ValuesIn(test::levels()), test::level_name);

TEST_P(Sinks, AnyNumberOfThreadsGivesTheSameBits) {
  const Problem p = grouped(700, 700);
  const Plan plan = planned(masks::sliding_window(700, 700, 100), p);
  const AttentionTensors one(p, 3, check::Sinks::of_heads), many(p, 3, check::Sinks::of_heads);
  test::attend(plan, one, &serial_executor());
  test::attend(plan, many);
  test::expect_same_results(one, many);
  EXPECT_TRUE(test::same_bits(*one.grad_sinks, *many.grad_sinks));
}

TEST_P(Sinks, OfMinusInfinityAreBitwiseNone) {
  const Problem p = grouped(257, 200);
  const Plan plan = planned(masks::causal(257, 200), p);
  AttentionTensors with(p, 3, check::Sinks::of_heads);
  const AttentionTensors without(p, 3);
  for (std::int64_t head = 0; head < 4; ++head) with.sinks->set(head, -kInfinity);
  test::attend(plan, with);
  test::attend(plan, without);
  test::expect_same_results(with, without);
  EXPECT_TRUE(test::all_equal(*with.grad_sinks, 0));
}

TEST_P(Sinks, OfHeadsAreThoseOfAllTheirRows) {
  const Problem p = grouped(257, 200);
  const Plan plan = planned(masks::causal(257, 200), p);
  const AttentionTensors of_heads(p, 3, check::Sinks::of_heads);
  AttentionTensors of_rows(p, 3, check::Sinks::of_rows);
  for (std::int64_t i = 0; i < of_rows.sinks->size(); ++i) of_rows.sinks->set(i, of_heads.sinks->at(i / 257 % 4));
  test::attend(plan, of_heads);
  test::attend(plan, of_rows);
  test::expect_same_results(of_heads, of_rows);
  for (std::int64_t head = 0; head < 4; ++head) {
    double sum = 0;
    for (std::int64_t i = 0; i < of_rows.sinks->size(); ++i)
      if (i / 257 % 4 == head) sum += of_rows.grad_sinks->at(i);
    EXPECT_NEAR(of_heads.grad_sinks->at(head), sum, 1e-5 * std::max(1.0, std::abs(sum)));
  }
}

TEST_P(Sinks, OfRowsThatSeeNothingAreTheirLse) {
  const Problem p = grouped(200, 70);  // the first 130 rows see nothing: whole tiles, and part of one
  const Plan plan = planned(masks::causal(200, 70), p);
  const AttentionTensors tensors(p, 3, check::Sinks::of_heads);
  test::attend(plan, tensors);
  for (std::int64_t row = 0; row < 130; ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      EXPECT_EQ(tensors.lse.at(head * 200 + row), tensors.sinks->at(head));
      EXPECT_EQ(tensors.o.at((row * 4 + head) * 40), 0);
      EXPECT_EQ(tensors.grad_q.at((row * 4 + head) * 40), 0);
    }
  }
}

/// Far from the scores, on either side: nothing overflows.
TEST_P(Sinks, MayBeLargeOrSmall) {
  const Problem p = grouped(65, 65);
  const Plan plan = planned(masks::causal(65, 65), p);
  AttentionTensors tensors(p, 3, check::Sinks::of_heads);
  const AttentionTensors without(p, 3);
  for (std::int64_t head = 0; head < 4; ++head) tensors.sinks->set(head, head < 2 ? 3e4F : -3e4F);
  test::attend(plan, tensors);
  test::attend(plan, without);
  for (std::int64_t row = 0; row < 65; ++row) {
    EXPECT_FLOAT_EQ(tensors.lse.at(row), 3e4F);
    EXPECT_EQ(tensors.o.at(row * 4 * 40), 0);
    EXPECT_EQ(tensors.lse.at(3 * 65 + row), without.lse.at(3 * 65 + row));
    EXPECT_EQ(tensors.o.at((row * 4 + 3) * 40), without.o.at((row * 4 + 3) * 40));
  }
  EXPECT_TRUE(test::all_finite(tensors.grad_q));
  EXPECT_TRUE(test::all_finite(*tensors.grad_sinks));
}

/// A sink of NaN in head 1, which shares keys with head 0. Rows see the 60 keys before them, keys from 40 on see nobody
/// beyond, and the last 56 keys are seen by no row at all.
TEST_P(Sinks, OfNaNReachOnlyWhatTheyMust) {
  const Problem p = grouped(200, 256);
  const Mask mask = from_predicate({1, 1, 200, 256}, [](auto, auto, auto row, auto column) {
    return row >= 20 && column < 200 && column <= row && column > row - 60;
  });
  if (!test::serves(GetParam(), mask)) GTEST_SKIP() << "the mask is of bits";
  AttentionTensors tensors(p, 3, check::Sinks::of_heads);
  tensors.sinks->set(1, kNaN);
  test::attend(planned(mask, p), tensors);
  const auto is_nan = [](const HostTensor& tensor, std::int64_t at) { return std::isnan(tensor.at(at)); };
  for (std::int64_t row = 0; row < 200; ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      const std::int64_t at = (row * 4 + head) * 40;
      ASSERT_EQ(is_nan(tensors.lse, head * 200 + row), head == 1) << row << " " << head;
      ASSERT_EQ(is_nan(tensors.o, at), head == 1 && row >= 20) << row << " " << head;
      ASSERT_EQ(is_nan(tensors.grad_q, at), head == 1 && row >= 20) << row << " " << head;
    }
  }
  for (std::int64_t key = 0; key < 256; ++key) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const std::int64_t at = (key * 2 + head) * 40;
      ASSERT_EQ(is_nan(tensors.grad_k, at), head == 0 && key < 200) << key << " " << head;
      ASSERT_EQ(is_nan(tensors.grad_v, at), head == 0 && key < 200) << key << " " << head;
    }
  }
  for (std::int64_t head = 0; head < 4; ++head) EXPECT_EQ(is_nan(*tensors.grad_sinks, head), head == 1);
}

TEST_P(Sinks, LeaveTheOtherGradientsToOAndLse) {
  const Problem p = grouped(257, 257);
  const Plan plan = planned(masks::causal(257, 257), p);
  const AttentionTensors all(p, 3, check::Sinks::of_heads), some(p, 3, check::Sinks::of_heads);
  test::attend(plan, all);
  forward(plan, some.forward());
  BackwardTensors frozen = some.backward();
  frozen.sinks = frozen.grad_sinks = {};
  backward(plan, frozen);
  test::expect_same_results(all, some);
}

TEST_P(Sinks, TakePartInReordering) {
  if (GetParam().form == MaskForm::intervals) GTEST_SKIP() << "the mask is of bits";
  const Problem p = grouped(400, 400);
  PlanOptions options = test::forced(GetParam());
  options.reorder = true;
  const Mask mask = scrambled_band(400);
  ASSERT_TRUE(plan(mask, p, options).reordering()->gained);
  const AttentionTensors tensors(p, 3, check::Sinks::of_heads), plain(p, 3, check::Sinks::of_heads);
  test::attend(plan(mask, p, options), tensors);
  test::attend(planned(mask, p), plain);
  for (std::int64_t head = 0; head < 4; ++head)
    EXPECT_NEAR(tensors.grad_sinks->at(head), plain.grad_sinks->at(head), 0.05);
}

/// One part of the keys has the sinks: they are in its lse, and the merged result has them once.
TEST(SinksOfMerge, AreGivenToOnePart) {
  Problem p;
  p.query_length = p.key_length = 130;
  p.head_dim = p.value_dim = 24;
  p.query_heads = 2;
  const Mask all = masks::causal(130, 130);
  const auto half = [&](bool first) {
    return from_predicate({1, 1, 130, 130},
                          [=](auto, auto, auto row, auto column) { return column <= row && (column < 64) == first; });
  };
  const AttentionTensors whole(p, 9, check::Sinks::of_heads);
  forward(plan(all, p), whole.forward());
  for (const bool sinks_first : {true, false}) {
    const AttentionTensors with(p, 9, check::Sinks::of_heads), without(p, 9), merged(p, 9);
    forward(plan(half(sinks_first), p), with.forward());
    forward(plan(half(!sinks_first), p), without.forward());
    merge({.parts = {{with.o.view(), with.lse.view()}, {without.o.view(), without.lse.view()}},
           .o = merged.o.view(),
           .lse = merged.lse.view()});
    for (std::int64_t i = 0; i < whole.o.size(); ++i) ASSERT_NEAR(merged.o.at(i), whole.o.at(i), 1e-5) << i;
    for (std::int64_t i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(merged.lse.at(i), whole.lse.at(i), 1e-5) << i;
  }
}

class SinkChecks : public testing::Test {
 protected:
  static Problem problem() {
    Problem p;
    p.batch = 2;
    p.query_length = p.key_length = 400;
    p.query_heads = 3;
    p.head_dim = p.value_dim = 8;
    p.dtype = DType::bf16;
    return p;
  }
  static std::string refusal_of(const TensorView& sinks, bool reorder = false) {
    const Plan made = plan(scrambled_band(400), problem(), {.reorder = reorder});
    const AttentionTensors tensors(problem(), 1);
    ForwardTensors given = tensors.forward();
    given.sinks = sinks;
    try {
      forward(made, given);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(SinkChecks, SayWhatWasGivenAndWhatIsExpected) {
  const HostTensor four(DType::f32, {4}), rows(DType::f32, {2, 3, 399}), half(DType::f16, {3}), right(DType::bf16, {3});
  EXPECT_EQ(refusal_of(four.view()), "forward: sinks: shape is (4); expected (3)");
  EXPECT_EQ(refusal_of(rows.view()), "forward: sinks: shape is (2, 3, 399); expected (2, 3, 400)");
  EXPECT_EQ(refusal_of(half.view()), "forward: sinks: dtype is f16; expected bf16");
  TensorView elsewhere = right.view();
  elsewhere.device = {DeviceType::cuda, 0};
  EXPECT_EQ(refusal_of(elsewhere), "forward: sinks: device is cuda:0; expected cpu, that of the call");
  EXPECT_EQ(refusal_of(right.view()), "");
}

TEST_F(SinkChecks, RefuseThoseOfRowsInAnotherOrder) {
  const HostTensor rows(DType::f32, {2, 3, 400});
  EXPECT_NE(refusal_of(rows.view(), true).find("sinks are given for each row, and the plan moves rows"),
            std::string::npos);
}

TEST_F(SinkChecks, WantAGradientBesideTheSinks) {
  const Plan made = plan(masks::causal(400, 400), problem());
  const AttentionTensors tensors(problem(), 1, check::Sinks::of_heads);
  forward(made, tensors.forward());
  BackwardTensors given = tensors.backward();
  given.grad_sinks = {};
  try {
    backward(made, given);
    FAIL() << "sinks without a place for their gradient were taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "backward: grad_sinks: shape is absent; expected (3)");
  }
}

TEST(SinksOfNoBatch, HaveAGradientOfZero) {
  Problem p;
  p.batch = 0;
  p.query_length = p.key_length = p.head_dim = p.value_dim = 8;
  p.query_heads = 3;
  const AttentionTensors tensors(p, 1, check::Sinks::of_heads);
  backward(plan(masks::causal(8, 8), p), tensors.backward());
  EXPECT_TRUE(test::all_equal(*tensors.grad_sinks, 0));
}

}  // namespace
}  // namespace flashmask
