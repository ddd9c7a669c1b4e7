// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reference.h"

#include "flashmask/builders.h"
#include "kernels.h"
#include "kit/kernel_check.h"

namespace flashmask {
namespace {

class EveryKernel : public testing::TestWithParam<DType> {};

/// All kernels of a dtype at once: the reference takes longer than they do.
TEST_P(EveryKernel, StaysWithinTheBoundOnTheCorpus) {
  check::CheckRequest request;
  request.dtype = GetParam();
  request.quick = test::small_tests();
  for (const check::KernelVerdict& verdict : check::check_kernels(request))
    EXPECT_TRUE(verdict.passes()) << verdict.kernel << ": " << verdict.worst << " times the bound, " << verdict.where;
}

INSTANTIATE_TEST_SUITE_P(Cpu, EveryKernel, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& one) { return to_string(one.param); });

class Accuracy : public test::EveryLevel {};

INSTANTIATE_TEST_SUITE_P(Cpu, Accuracy, testing::ValuesIn(test::levels()), test::level_name);

/// A bound that is loose but absolute: the corpus test has the tight one.
void expect_near_reference(const Problem& problem, const Mask& mask, const test::Level& level, double tolerance) {
  const check::AttentionTensors tensors(problem, 7);
  const Plan planned = plan(mask, problem, test::forced(level));
  test::attend(planned, tensors);
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const reference::Outputs expected = reference::forward(problem, mask, {q, k, v});
  const reference::Gradients gradients =
      reference::backward(problem, mask, {q, k, v}, tensors.grad_o.values(), tensors.grad_lse.values());
  const auto compare = [&](const check::HostTensor& got, const std::vector<double>& want, const char* name) {
    for (std::int64_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got.at(i), want[static_cast<std::size_t>(i)], tolerance) << name << "[" << i << "]";
  };
  compare(tensors.o, expected.o, "o");
  compare(tensors.grad_q, gradients.q, "grad_q");
  compare(tensors.grad_k, gradients.k, "grad_k");
  compare(tensors.grad_v, gradients.v, "grad_v");
}

double tolerance_of(DType dtype) { return dtype == DType::f32 ? 2e-4 : 0.15; }

TEST_P(Accuracy, ServesAnyRatioOfHeads) {
  for (const std::int64_t ratio : {3, 5, 6, 7, 12, 71}) {
    Problem p = problem(70, 70);
    p.query_heads = 2 * ratio;
    p.kv_heads = 2;
    p.head_dim = p.value_dim = 16;
    SCOPED_TRACE(ratio);
    expect_near_reference(p, masks::causal(70, 70), GetParam(), 4 * tolerance_of(p.dtype));
    if (test::small_tests()) break;
  }
}

TEST_P(Accuracy, ServesThousandsOfTinySequences) {
  Problem p = problem(3, 5);
  p.batch = test::small_tests() ? 100 : 2840;
  p.head_dim = p.value_dim = 8;
  expect_near_reference(p, masks::causal(3, 5), GetParam(), tolerance_of(p.dtype));
}

TEST_P(Accuracy, ServesEveryHeadDim) {
  const int step = test::small_tests() ? 51 : 5;
  for (int dim = 1; dim <= 256; dim += step) {
    Problem p = problem(65, 66);
    p.head_dim = dim;
    p.value_dim = 257 - dim;
    SCOPED_TRACE(dim);
    expect_near_reference(p, masks::full(65, 66), GetParam(), tolerance_of(p.dtype));
  }
  for (const int dim : {257, 300, 512}) {
    Problem p = problem(65, 66);
    p.head_dim = dim;
    p.value_dim = 769 - dim;
    SCOPED_TRACE(dim);
    expect_near_reference(p, masks::causal(65, 66), GetParam(), tolerance_of(p.dtype));
  }
}

TEST_P(Accuracy, KeepsLargeScoresExact) {
  // Scores of ±1000: a maximum that lags, or an exponential without its maximum, would overflow.
  Problem p = problem(130, 130);
  p.scale = 100.0f;
  const check::AttentionTensors tensors(p, 3);
  const Plan planned = plan(masks::causal(130, 130), p, test::forced(GetParam()));
  test::attend(planned, tensors);
  EXPECT_TRUE(test::all_finite(tensors.o));
  EXPECT_TRUE(test::all_finite(tensors.grad_q));
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const reference::Outputs expected = reference::forward(p, masks::causal(130, 130), {q, k, v});
  for (std::int64_t i = 0; i < tensors.lse.size(); ++i) {
    const double want = expected.lse[static_cast<std::size_t>(i)];
    EXPECT_NEAR(tensors.lse.at(i), want, 1e-5 * std::max(1.0, std::abs(want)));
  }
}

TEST_P(Accuracy, FollowsAMaximumThatGrowsWithTheKeys) {
  // Each key scores higher than the one before it, over many tiles: the running maximum moves all the time.
  Problem p = problem(64, 640);
  p.head_dim = p.value_dim = 1;
  p.scale = 1.0f;
  check::AttentionTensors tensors(p, 3);
  for (std::int64_t i = 0; i < 64; ++i) tensors.q.set(i, 1.0f);
  for (std::int64_t j = 0; j < 640; ++j) tensors.k.set(j, 0.25f * static_cast<float>(j));
  const Mask mask = masks::full(64, 640);
  forward(plan(mask, p, test::forced(GetParam())), tensors.forward());
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const reference::Outputs expected = reference::forward(p, mask, {q, k, v});
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(tensors.o.at(i), expected.o[static_cast<std::size_t>(i)], tolerance_of(p.dtype) / 4);
    EXPECT_NEAR(tensors.lse.at(i), expected.lse[static_cast<std::size_t>(i)], 2e-3);
  }
}

}  // namespace
}  // namespace flashmask
