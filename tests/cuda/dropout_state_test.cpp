// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "flashmask/builders.h"
#include "flashmask/dropout.h"
#include "kit/device_memory.h"
#include "kit/placed_attention.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;
using check::PlacedPlan;
using check::PlacedTensors;

constexpr DropoutState kState{0xFEDCBA9876543210, 0xFFFFFFFD};

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
  problem.dropout = 0.25;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  const auto bytes = static_cast<std::size_t>(a.size()) * size_in_bytes(a.view().dtype);
  return std::memcmp(a.view().data, b.view().data, bytes) == 0;
}

/// Those that have dropout and give the same bits on every run.
std::vector<KernelInfo> kernels_of(Direction direction) {
  std::vector<KernelInfo> chosen = check::cuda_kernels(direction);
  std::erase_if(chosen, [](const KernelInfo& kernel) {
    return !kernel.features.has(Feature::dropout) || !check::repeats(kernel);
  });
  return chosen;
}

class CudaDropoutState : public testing::TestWithParam<KernelInfo> {
 protected:
  AttentionTensors attend(const Mask& mask, const Problem& problem, const Execution& execution,
                          Visit visit = Visit::active) const {
    PlacedPlan placed(mask, problem,
                      {.visit = visit, .form = GetParam().predicate, .kernel = GetParam().name, .deterministic = true});
    AttentionTensors tensors(problem, 3);
    tensors.clear_outputs();
    const PlacedTensors on_device(tensors, problem.device);
    placed.forward(on_device.forward(), execution);
    if (GetParam().direction == Direction::backward) placed.backward(on_device.backward(), execution);
    on_device.fetch();
    return tensors;
  }

  static void expect_same(const AttentionTensors& a, const AttentionTensors& b) {
    EXPECT_TRUE(same_bits(a.o, b.o));
    EXPECT_TRUE(same_bits(a.lse, b.lse));
    if (GetParam().direction == Direction::forward) return;
    EXPECT_TRUE(same_bits(a.grad_q, b.grad_q));
    EXPECT_TRUE(same_bits(a.grad_k, b.grad_k));
    EXPECT_TRUE(same_bits(a.grad_v, b.grad_v));
  }
};

TEST_P(CudaDropoutState, TakesSeedAndOffsetFromTheDevice) {
  const Problem problem = problem_for(GetParam(), 300, 280);
  const Mask mask = masks::causal(300, 280);
  check::DeviceMemory memory(2 * sizeof(std::uint64_t));
  const std::uint64_t state[2] = {kState.seed, kState.offset};
  memory.upload(state);
  const AttentionTensors given = attend(mask, problem, {.dropout = kState});
  expect_same(given, attend(mask, problem, {.dropout_on_device = static_cast<const std::uint64_t*>(memory.data())}));
  EXPECT_FALSE(same_bits(given.o, attend(mask, problem, {.dropout = {kState.seed, kState.offset + 1}}).o));
}

TEST_P(CudaDropoutState, DropsTheSameWhetherTilesAreSkippedOrVisited) {
  const Problem problem = problem_for(GetParam(), 700, 700);
  const Mask mask = masks::sliding_window(700, 700, 90);
  expect_same(attend(mask, problem, {.dropout = kState}), attend(mask, problem, {.dropout = kState}, Visit::all));
}

INSTANTIATE_TEST_SUITE_P(Forwards, CudaDropoutState, testing::ValuesIn(kernels_of(Direction::forward)),
                         check::test_name);
INSTANTIATE_TEST_SUITE_P(Backwards, CudaDropoutState, testing::ValuesIn(kernels_of(Direction::backward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
