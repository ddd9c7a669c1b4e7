// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/plan_in_memory.h"
#include "cuda/runtime/status.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/reference.h"
#include "flashmask/reorder.h"
#include "kit/device_memory.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"
#include "mask/scrambled_masks.h"
#include "plan/refusal.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::DeviceMemory;
using check::DeviceTensor;
using check::PlanInMemory;

Problem problem_for(const Mask& mask, std::int64_t head_dim) {
  Problem problem;
  problem.batch = 2;
  problem.query_length = mask.shape().rows;
  problem.key_length = mask.shape().columns;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = problem.value_dim = head_dim;
  problem.dtype = DType::bf16;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

/// What the device gives under a plan, both directions, beside what is right.
class ReorderedCall {
 public:
  ReorderedCall(const Mask& mask, const Problem& problem) : problem_(problem), tensors_(problem, 5) {
    const std::vector<double> q = tensors_.q.values(), k = tensors_.k.values(), v = tensors_.v.values();
    const std::vector<double> grad_o = tensors_.grad_o.values();
    const reference::Inputs inputs{q, k, v};
    outputs_ = reference::forward(problem, mask, inputs);
    gradients_ = reference::backward(problem, mask, inputs, grad_o, {});
    naive_ = check::naive::attend(problem, mask, inputs, grad_o, {});
  }

  void run(const Plan& plan) {
    tensors_.clear_outputs();
    const BackwardTensors host = tensors_.backward();
    const DeviceTensor q(host.q), k(host.k), v(host.v), o(host.o), lse(host.lse), grad_o(host.grad_o),
        grad_q(host.grad_q), grad_k(host.grad_k), grad_v(host.grad_v);
    const DeviceMemory workspace(plan.workspace_bytes(Direction::forward, 1)),
        room(plan.workspace_bytes(Direction::backward, 1));
    forward(plan, {q.view(), k.view(), v.view(), o.view(), lse.view()},
            {.workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    backward(plan,
             {.q = q.view(),
              .k = k.view(),
              .v = v.view(),
              .o = o.view(),
              .lse = lse.view(),
              .grad_o = grad_o.view(),
              .grad_lse = {},
              .grad_q = grad_q.view(),
              .grad_k = grad_k.view(),
              .grad_v = grad_v.view()},
             {.workspace = room.data(), .workspace_bytes = room.bytes()});
    cuda::check(cudaDeviceSynchronize(), "reordered call");
    for (const DeviceTensor* output : {&o, &lse, &grad_q, &grad_k, &grad_v}) output->download();
  }

  void expect_accurate() const {
    expect(tensors_.o, outputs_.o, naive_.o, "o");
    expect(tensors_.grad_q, gradients_.q, naive_.grad_q, "grad_q");
    expect(tensors_.grad_k, gradients_.k, naive_.grad_k, "grad_k");
    expect(tensors_.grad_v, gradients_.v, naive_.grad_v, "grad_v");
    for (std::int64_t i = 0; i < tensors_.lse.size(); ++i)
      ASSERT_LE(
          check::compare_lse(problem_.dtype, tensors_.lse.at(i), outputs_.lse[static_cast<std::size_t>(i)]).ratio(), 1)
          << "lse " << i;
  }

 private:
  void expect(const check::HostTensor& output, const std::vector<double>& reference, const std::vector<double>& naive,
              const char* what) const {
    check::ErrorBound bound(problem_.dtype);
    bound.add(output.values(), reference, naive);
    EXPECT_LE(bound.result().ratio(), 1) << what;
  }

  Problem problem_;
  AttentionTensors tensors_;
  reference::Outputs outputs_;
  reference::Gradients gradients_;
  check::naive::Results naive_;
};

void expect_right_when_reordered(const Mask& mask, std::int64_t head_dim) {
  const Problem problem = problem_for(mask, head_dim);
  const PlanInMemory placed(mask, problem, {.reorder = true});
  ASSERT_TRUE(placed.plan.reordering()->gained) << placed.plan.reordering()->why;
  ReorderedCall call(mask, problem);
  call.run(placed.plan);
  call.expect_accurate();
}

TEST(ReorderedOnDevice, GivesTheCallersOrder) {
  expect_right_when_reordered(test::scrambled_band(900, 6, 1), 64);
  expect_right_when_reordered(test::scrambled_band(1000, 9, 2), 128);
}

TEST(ReorderedOnDevice, HasAnOrderForEachBatchEntry) {
  const std::vector<Mask> entries = {test::scrambled_band(900, 6, 3), test::scrambled_band(900, 3, 4)};
  expect_right_when_reordered(stack_batch(entries), 128);
}

TEST(ReorderedOnDevice, TakesWhatReorderFound) {
  const Mask mask = test::scrambled_band(900, 6, 5);
  const Problem problem = problem_for(mask, 128);
  const Reordering found = reorder(mask, {128, 128});
  ASSERT_TRUE(found.gained);
  ReorderedCall call(mask, problem);
  call.run(PlanInMemory(found, problem).plan);
  call.expect_accurate();
}

TEST(ReorderedOnDevice, StaysAsItIsWhereNothingIsGained) {
  const Mask mask = masks::causal(300, 300);
  const Problem problem = problem_for(mask, 128);
  const PlanInMemory placed(mask, problem, {.reorder = true});
  EXPECT_FALSE(placed.plan.reordering()->gained);
  ReorderedCall call(mask, problem);
  call.run(placed.plan);
  call.expect_accurate();
}

TEST(ReorderedOnDevice, NeedsTheMaskOnTheHost) {
  const Problem problem = problem_for(masks::causal(64, 64), 128);
  const DeviceDenseMask mask{reinterpret_cast<const std::uint8_t*>(256), {1, 1, 64, 64}, {4096, 4096, 64, 1}};
  EXPECT_NE(refusal([&] { plan_bytes(mask, problem, {.reorder = true}); }, Status::unsupported).find("from the host"),
            std::string::npos);
}

}  // namespace
}  // namespace flashmask
