// SPDX-License-Identifier: Apache-2.0
#include "flashmask/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "flashmask/builders.h"
#include "kit/kernel_check.h"
#include "kit/placed_attention.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::PlacedPlan;
using check::PlacedTensors;

bool drops(const KernelInfo& kernel) { return kernel.features.has(Feature::dropout); }

std::vector<KernelInfo> dropping_kernels(Direction direction) {
  std::vector<KernelInfo> chosen;
  std::ranges::copy_if(check::cuda_kernels(direction), std::back_inserter(chosen), drops);
  return chosen;
}

/// All kernels at once, over the corpus: the reference takes longer than they do.
class CudaDropoutOnTheCorpus : public testing::TestWithParam<std::tuple<double, DType>> {};

TEST_P(CudaDropoutOnTheCorpus, HoldsTheBoundOfEveryKernel) {
  check::CheckRequest request;
  request.device = Device{DeviceType::cuda, 0};
  request.quick = true;
  std::tie(request.dropout, request.dtype) = GetParam();
  const std::vector<KernelInfo> all = kernels();
  for (const check::KernelVerdict& verdict : check::check_kernels(request)) {
    EXPECT_TRUE(verdict.passes()) << verdict.kernel << ": " << verdict.worst << " times the bound, " << verdict.where;
    const auto& kernel = *std::ranges::find(all, verdict.kernel, &KernelInfo::name);
    EXPECT_EQ(verdict.cases > 0, drops(kernel)) << verdict.kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaDropoutOnTheCorpus,
                         testing::Combine(testing::Values(0.1, 0.5), testing::Values(DType::bf16, DType::f16)));

class CudaDropout : public testing::TestWithParam<KernelInfo> {};

/// Keys of 0 are all as probable as each other, and of values that are unit vectors o says which of them were kept:
/// so many keys at a time as there are dims.
TEST_P(CudaDropout, KeepsWhatTheLibraryExpands) {
  Problem problem;
  problem.batch = 2;
  problem.query_length = 150;
  problem.key_length = 203;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = GetParam().head_dim;
  problem.value_dim = GetParam().value_dim;
  problem.dtype = GetParam().dtype;
  problem.device = {DeviceType::cuda, 0};
  problem.dropout = 0.3;
  const DropoutState state{.seed = 0xABCDEF0123456789, .offset = 0x87654321};
  const std::vector<std::uint8_t> kept = expand_dropout(problem, state);
  PlacedPlan placed(masks::full(150, 203), problem, {.form = GetParam().predicate, .kernel = GetParam().name});
  AttentionTensors tensors(problem, 1);
  for (std::int64_t i = 0; i < tensors.k.size(); ++i) tensors.k.set(i, 0);
  const std::int64_t dim = problem.value_dim, heads = problem.query_heads;
  for (std::int64_t first = 0; first < 203; first += dim) {
    for (std::int64_t i = 0; i < tensors.v.size(); ++i)  // [batch, key, head, dim]
      tensors.v.set(i, i / dim / problem.kv_heads % 203 == first + i % dim ? 1 : 0);
    const PlacedTensors on_device(tensors, problem.device);
    placed.forward(on_device.forward(), {.dropout = state});
    on_device.fetch();
    for (std::int64_t i = 0; i < tensors.o.size(); ++i) {
      const std::int64_t key = first + i % dim, head = i / dim % heads, row = i / dim / heads % 150,
                         batch = i / dim / heads / 150;
      if (key >= 203) continue;
      const bool expected = kept[static_cast<std::size_t>(((batch * heads + head) * 150 + row) * 203 + key)] != 0;
      ASSERT_EQ(tensors.o.at(i) != 0, expected) << "row " << row << " of head " << head << ", key " << key;
      ASSERT_NEAR(tensors.o.at(i), expected ? dropout_scale(0.3) / 203 : 0, 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaDropout, testing::ValuesIn(dropping_kernels(Direction::forward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
