// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/reference.h"
#include "kit/placed_attention.h"

namespace flashmask {
namespace {

/// ‖found − expected‖ / ‖expected‖.
double relative_error(const check::HostTensor& found, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = found.at(static_cast<std::int64_t>(i)) - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

class CudaGradientRounding : public testing::TestWithParam<KernelInfo> {};

/// Gradients of scores are P ∘ (∂P − dot). Where P is rounded to 16 bits before that, as the operand of the product for
/// the gradient of v is, gradients of q and k are 2.9e-3 away in bfloat16 and 0.375e-3 in float16; where it is not,
/// 2.4e-3 and 0.3e-3, as in FlashAttention.
TEST_P(CudaGradientRounding, ProbabilitiesKeepTheirBitsForGradientsOfScores) {
  const KernelInfo& kernel = GetParam();
  Problem problem;
  problem.query_length = problem.key_length = 1024;
  problem.head_dim = problem.value_dim = kernel.head_dim;
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  const Mask mask = masks::causal(1024, 1024);
  const check::AttentionTensors tensors(problem, 3);
  check::PlacedPlan plan(mask, problem,
                         {.form = kernel.predicate, .kernel = kernel.name, .deterministic = check::repeats(kernel)});
  const check::PlacedTensors on_device(tensors, problem.device);
  plan.forward(on_device.forward());
  BackwardTensors given = on_device.backward();
  given.grad_lse = {};
  plan.backward(given);
  on_device.fetch();

  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const reference::Gradients expected = reference::backward(problem, mask, {q, k, v}, tensors.grad_o.values(), {});
  const double most = kernel.dtype == DType::bf16 ? 2.7e-3 : 0.335e-3;
  EXPECT_LT(relative_error(tensors.grad_q, expected.q), most) << "grad_q";
  EXPECT_LT(relative_error(tensors.grad_k, expected.k), most) << "grad_k";
  EXPECT_LT(relative_error(tensors.grad_v, expected.v), most) << "grad_v";
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaGradientRounding, testing::ValuesIn(check::cuda_kernels(Direction::backward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
