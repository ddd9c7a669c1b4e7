// SPDX-License-Identifier: Apache-2.0
#include "flashmask/features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "flashmask/kernels.h"
#include "plan/registry.h"

namespace flashmask {
namespace {

Problem problem_of(const KernelInfo& kernel) {
  Problem problem;
  problem.query_length = problem.key_length = 128;
  problem.head_dim = problem.value_dim = 64;
  problem.dtype = kernel.dtype;
  problem.device = {kernel.device, 0};
  return problem;
}

TEST(Features, NobodyServesWhatNoKernelDeclares) {
  const auto unknown = static_cast<Feature>(kFeatureCount);
  for (const auto& kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    const Problem problem = problem_of(info);
    const KernelRequest request{info.direction, problem, info.predicate, info.name, {unknown}};
    EXPECT_EQ(find_kernel(request), nullptr) << info.name;
    EXPECT_NE(no_kernel(request).find(info.name + ": it has no " + to_string(unknown)), std::string::npos)
        << no_kernel(request);
  }
}

TEST(Features, AProblemNeedsDropoutWhereItHasSome) {
  Problem problem;
  EXPECT_EQ(required(problem), Features());
  problem.dropout = 0.1;
  EXPECT_EQ(required(problem), Features{Feature::dropout});
}

TEST(Features, AProblemNeedsASoftcapWhereItHasOne) {
  Problem problem;
  problem.change = scores::softcap(50);
  EXPECT_EQ(required(problem), Features{Feature::softcap});
}

TEST(Features, AProblemNeedsTheBiasThatItHas) {
  Problem problem;
  problem.change = scores::bias();
  EXPECT_EQ(required(problem), Features{Feature::bias});
  problem.change = scores::distance();
  EXPECT_EQ(required(problem), Features{Feature::distance_bias});
}

TEST(Features, AFactorBelongsToTheScaleAndOtherChainsAreAFeature) {
  Problem problem;
  problem.change = scores::multiply(2) | scores::softcap(50) | scores::alibi();
  EXPECT_EQ(required(problem), (Features{Feature::softcap, Feature::alibi}));
  problem.change = scores::softcap(50) | scores::multiply(2);
  EXPECT_EQ(required(problem), Features{Feature::any_change});
  problem.change = scores::bias() | scores::softcap(50);
  EXPECT_EQ(required(problem), (Features{Feature::bias, Feature::any_change}));
}

TEST(Features, AFunctionIsAFeatureBesideTheBiasThatItReads) {
  Problem problem;
  problem.change = scores::softcap(50) | scores::function("mul(score, score)");
  EXPECT_EQ(required(problem), Features{Feature::functions});
  problem.change = scores::function("mul(score, distance)");
  EXPECT_EQ(required(problem), (Features{Feature::functions, Feature::distance_bias}));
}

/// Whether `other` takes all calls that `kernel` takes, and these with the feature.
bool serves_for(const KernelInfo& other, const KernelInfo& kernel, Feature feature) {
  const Features all = kernel.features | Features{feature};
  return (all.bits() & ~other.features.bits()) == 0 && other.device == kernel.device &&
         other.direction == kernel.direction && other.dtype == kernel.dtype && other.predicate == kernel.predicate &&
         other.head_dim >= kernel.head_dim && other.value_dim >= kernel.value_dim;
}

TEST(Features, WhereAKernelHasNoDropoutAnotherHas) {
  for (const KernelInfo& kernel : kernels()) {
    Problem problem = problem_of(kernel);
    problem.dropout = 0.1;
    const bool has_dropout = kernel.features.has(Feature::dropout);
    EXPECT_EQ(why_not(kernel, problem, kernel.predicate) == "it has no dropout", !has_dropout) << kernel.name;
    EXPECT_TRUE(std::ranges::any_of(kernels(), [&](const KernelInfo& other) {
      return other.arch == kernel.arch && serves_for(other, kernel, Feature::dropout);
    })) << kernel.name;
  }
}

/// On a Hopper GPU these are kernels of sm80.
TEST(Features, EveryDeviceCapsScores) {
  for (const KernelInfo& kernel : kernels())
    EXPECT_TRUE(std::ranges::any_of(kernels(), [&](const KernelInfo& other) {
      return serves_for(other, kernel, Feature::softcap);
    })) << kernel.name;
}

TEST(Features, LargerHeadsThanAKernelHasAreRefused) {
  for (const KernelInfo& kernel : kernels()) {
    ASSERT_GT(kernel.head_dim, 0) << kernel.name;
    ASSERT_GT(kernel.value_dim, 0) << kernel.name;
    Problem problem = problem_of(kernel);
    problem.head_dim = kernel.head_dim + 8;
    EXPECT_NE(why_not(kernel, problem, kernel.predicate).find("it takes up to"), std::string::npos) << kernel.name;
  }
}

TEST(Features, EveryKernelOfTheCpuRepeatsAndEveryForwardDoes) {
  for (const KernelInfo& kernel : kernels()) {
    const bool repeats = kernel.features.has(Feature::deterministic);
    EXPECT_TRUE(repeats || (kernel.device == DeviceType::cuda && kernel.direction == Direction::backward))
        << kernel.name;
  }
}

}  // namespace
}  // namespace flashmask
