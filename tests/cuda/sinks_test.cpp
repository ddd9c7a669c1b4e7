// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "cuda/kernels_under_test.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "kit/device_memory.h"
#include "kit/kernel_check.h"
#include "kit/placed_attention.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;
using check::PlacedPlan;
using check::PlacedTensors;

/// All kernels at once, over the corpus: the reference takes longer than they do.
class CudaSinksOnTheCorpus : public testing::TestWithParam<std::tuple<check::Sinks, DType>> {};

TEST_P(CudaSinksOnTheCorpus, HoldTheBoundOfEveryKernel) {
  check::CheckRequest request;
  request.device = Device{DeviceType::cuda, 0};
  request.quick = true;
  std::tie(request.sinks, request.dtype) = GetParam();
  for (const check::KernelVerdict& verdict : check::check_kernels(request)) {
    EXPECT_TRUE(verdict.passes()) << verdict.kernel << ": " << verdict.worst << " times the bound, " << verdict.where;
    EXPECT_GT(verdict.cases, 0) << verdict.kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaSinksOnTheCorpus,
                         testing::Combine(testing::Values(check::Sinks::of_heads, check::Sinks::narrow_of_heads,
                                                          check::Sinks::of_rows),
                                          testing::Values(DType::bf16, DType::f16)));

Problem problem_for(const KernelInfo& kernel, std::int64_t rows, std::int64_t columns) {
  Problem problem;
  problem.batch = 2;
  problem.query_length = rows;
  problem.key_length = columns;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = kernel.head_dim;
  problem.value_dim = kernel.value_dim;
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  const auto bytes = static_cast<std::size_t>(a.size()) * size_in_bytes(a.view().dtype);
  return std::memcmp(a.view().data, b.view().data, bytes) == 0;
}

class CudaSinks : public testing::TestWithParam<KernelInfo> {
 protected:
  /// A kernel of the backward beside the forward that its plan chooses, on the device.
  void attend(const Mask& mask, const Problem& problem, AttentionTensors& tensors) const {
    PlacedPlan placed(mask, problem, {.form = GetParam().predicate, .kernel = GetParam().name});
    tensors.clear_outputs();
    const PlacedTensors on_device(tensors, problem.device);
    placed.forward(on_device.forward());
    placed.backward(on_device.backward());
    on_device.fetch();
  }
};

/// Over 4,096 rows, of which a block adds up so many.
TEST_P(CudaSinks, GiveTheSameGradientOnEveryRun) {
  const Problem problem = problem_for(GetParam(), 5000, 5000);
  const Mask mask = masks::sliding_window(5000, 5000, 128);
  AttentionTensors first(problem, 3, check::Sinks::of_heads), second(problem, 3, check::Sinks::of_heads);
  attend(mask, problem, first);
  attend(mask, problem, second);
  EXPECT_TRUE(same_bits(*first.grad_sinks, *second.grad_sinks));
  AttentionTensors of_rows(problem, 3, check::Sinks::of_rows);
  for (std::int64_t i = 0; i < of_rows.sinks->size(); ++i) of_rows.sinks->set(i, first.sinks->at(i / 5000 % 4));
  attend(mask, problem, of_rows);
  EXPECT_TRUE(same_bits(first.o, of_rows.o));
  for (std::int64_t head = 0; head < 4; ++head) {
    double sum = 0;
    for (std::int64_t i = 0; i < of_rows.sinks->size(); ++i)
      if (i / 5000 % 4 == head) sum += of_rows.grad_sinks->at(i);
    EXPECT_NEAR(first.grad_sinks->at(head), sum, 1e-4 * std::max(1.0, std::abs(sum)));
  }
}

TEST_P(CudaSinks, OfMinusInfinityAreBitwiseNone) {
  const Problem problem = problem_for(GetParam(), 400, 300);
  AttentionTensors with(problem, 3, check::Sinks::of_heads), without(problem, 3);
  for (std::int64_t head = 0; head < 4; ++head) with.sinks->set(head, -std::numeric_limits<float>::infinity());
  attend(masks::causal(400, 300), problem, with);
  attend(masks::causal(400, 300), problem, without);
  EXPECT_TRUE(same_bits(with.o, without.o));
  EXPECT_TRUE(same_bits(with.lse, without.lse));
  for (std::int64_t head = 0; head < 4; ++head) EXPECT_EQ(with.grad_sinks->at(head), 0);
}

/// A sink of NaN in head 1, which shares keys with head 0. The first rows see nothing, nobody sees the last keys.
TEST_P(CudaSinks, OfNaNReachOnlyWhatTheyMust) {
  const Problem problem = problem_for(GetParam(), 200, 256);
  const Mask mask = from_predicate({1, 1, 200, 256}, [](auto, auto, auto row, auto column) {
    return row >= 20 && column < 200 && column <= row && column > row - 60;
  });
  AttentionTensors tensors(problem, 3, check::Sinks::of_heads);
  tensors.sinks->set(1, std::numeric_limits<float>::quiet_NaN());
  attend(mask, problem, tensors);
  const auto poisoned = [](const HostTensor& tensor, std::int64_t at) { return !std::isfinite(tensor.at(at)); };
  const std::int64_t dim = problem.head_dim, value_dim = problem.value_dim;
  for (std::int64_t row = 0; row < 200; ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      const std::int64_t at = row * 4 + head;
      ASSERT_EQ(poisoned(tensors.lse, head * 200 + row), head == 1) << row << " " << head;
      ASSERT_EQ(poisoned(tensors.o, at * value_dim), head == 1 && row >= 20) << row << " " << head;
      ASSERT_EQ(poisoned(tensors.grad_q, at * dim), head == 1 && row >= 20) << row << " " << head;
    }
  }
  for (std::int64_t key = 0; key < 256; ++key) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const std::int64_t at = key * 2 + head;
      ASSERT_EQ(poisoned(tensors.grad_k, at * dim), head == 0 && key < 200) << key << " " << head;
      ASSERT_EQ(poisoned(tensors.grad_v, at * value_dim), head == 0 && key < 200) << key << " " << head;
    }
  }
  for (std::int64_t head = 0; head < 4; ++head) EXPECT_EQ(std::isnan(tensors.grad_sinks->at(head)), head == 1);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaSinks, testing::ValuesIn(check::cuda_kernels(Direction::backward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
