// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/plan_in_memory.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "kit/tangent_call.h"

namespace flashmask {
namespace {

using check::DeviceMemory;
using check::DeviceTensor;
using check::PlanInMemory;
using check::TangentCall;

constexpr DropoutState kDropoutState{.seed = 5, .offset = 7};

Problem problem_for(DType dtype, std::int64_t dim, std::int64_t rows, std::int64_t columns) {
  Problem problem;
  problem.batch = 2;
  problem.query_length = rows;
  problem.key_length = columns;
  problem.query_heads = 6;
  problem.kv_heads = 2;
  problem.head_dim = problem.value_dim = dim;
  problem.dtype = dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

PlanOptions options(MaskForm form = MaskForm::bits) { return {.form = form, .kernel = "sm8"}; }

/// A host tensor on the device; absent where it is.
class OnDevice {
 public:
  explicit OnDevice(const TensorView& host) {
    if (host.present()) tensor_.emplace(host);
  }
  TensorView view() const { return tensor_ ? tensor_->view() : TensorView{}; }
  void download() const { tensor_->download(); }

 private:
  std::optional<DeviceTensor> tensor_;
};

/// Runs the forward and then its tangents on the device.
void run(const Plan& plan, TangentCall& call) {
  call.clear_outputs();
  const TangentTensors host = call.views();
  const OnDevice q(host.q), k(host.k), v(host.v), o(host.o), lse(host.lse), tangent_q(host.tangent_q),
      tangent_k(host.tangent_k), tangent_v(host.tangent_v), tangent_o(host.tangent_o), tangent_lse(host.tangent_lse),
      sinks(host.sinks), slopes(host.alibi.slopes), query_positions(host.alibi.query_positions),
      key_positions(host.alibi.key_positions), bias(host.bias.values);
  const DeviceMemory workspace(
      std::max(plan.workspace_bytes(Direction::forward, 1), tangents_workspace_bytes(plan, 1)));
  const Execution execution{
      .workspace = workspace.data(), .workspace_bytes = workspace.bytes(), .dropout = kDropoutState};
  const AlibiTensors alibi{slopes.view(), query_positions.view(), key_positions.view()};
  const BiasTensor biases{bias.view(), host.bias.origin};
  forward(plan,
          {.q = q.view(),
           .k = k.view(),
           .v = v.view(),
           .o = o.view(),
           .lse = lse.view(),
           .sinks = sinks.view(),
           .alibi = alibi,
           .bias = biases},
          execution);
  forward_tangents(plan,
                   {.q = q.view(),
                    .k = k.view(),
                    .v = v.view(),
                    .o = o.view(),
                    .lse = lse.view(),
                    .tangent_q = tangent_q.view(),
                    .tangent_k = tangent_k.view(),
                    .tangent_v = tangent_v.view(),
                    .tangent_o = tangent_o.view(),
                    .tangent_lse = tangent_lse.view(),
                    .sinks = sinks.view(),
                    .alibi = alibi,
                    .bias = biases},
                   execution);
  check::synchronize_device();
  tangent_o.download();
  tangent_lse.download();
}

void expect_accurate(const Mask& mask, const Problem& problem, const TangentCall& call, const std::string& what) {
  const reference::Tangents expected = call.expected(mask, kDropoutState);
  EXPECT_LE(check::tangent_error(call.of_o, expected.o), check::tangent_tolerance(problem.dtype)) << "o, " << what;
  EXPECT_LE(check::tangent_error(call.of_lse, expected.lse), check::tangent_tolerance(problem.dtype))
      << "lse, " << what;
}

std::vector<double> results(const TangentCall& call) {
  std::vector<double> all = call.of_o.values();
  const std::vector<double> lse = call.of_lse.values();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

class CudaTangents : public testing::TestWithParam<std::tuple<DType, std::int64_t>> {
 protected:
  static Problem problem(std::int64_t rows, std::int64_t columns) {
    return problem_for(std::get<0>(GetParam()), std::get<1>(GetParam()), rows, columns);
  }
};

TEST_P(CudaTangents, AreThoseOfTheReferenceOverTheCorpus) {
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size& size : corpus::awkward_sizes()) {
      const std::int64_t heads = std::vector<std::int64_t>{1, 2, 6}[turn++ % 3];
      if (turn % 2 == 0 || !entry.accepts(size)) continue;
      const Mask mask = entry.build({size.rows, size.columns, heads});
      const Problem of_call = problem(size.rows, size.columns);
      TangentCall call(of_call, turn % 4 == 1 ? check::Sinks::of_heads : check::Sinks::none);
      run(PlanInMemory(mask, of_call, options()).plan, call);
      expect_accurate(mask, of_call, call, entry.name + " " + std::to_string(size.rows));
      if (mask.lowered().form() != MaskForm::intervals || mask.lowered().blocks() != nullptr) continue;
      const std::vector<double> from_bits = results(call);
      run(PlanInMemory(mask, of_call, options(MaskForm::intervals)).plan, call);
      EXPECT_EQ(results(call), from_bits) << entry.name;
    }
  }
}

TEST_P(CudaTangents, RepeatToTheBit) {
  const Problem of_call = problem(1500, 1500);
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{100, 700, 37, 500}, 1500);
  TangentCall call(of_call);
  const PlanInMemory placed(mask, of_call, options(MaskForm::intervals));
  run(placed.plan, call);
  expect_accurate(mask, of_call, call, "documents");
  const std::vector<double> first = results(call);
  for (int repeat = 0; repeat < 100; ++repeat) {
    run(placed.plan, call);
    ASSERT_EQ(results(call), first) << repeat;
  }
}

TEST_P(CudaTangents, FollowChangesOfScoresAndDropout) {
  for (const ScoreChange& change : {ScoreChange{}, scores::softcap(2), scores::softcap(2) | scores::alibi(),
                                    scores::softcap(3) | scores::bias(), scores::distance()}) {
    for (const double dropout : {0.0, 0.3}) {
      Problem of_call = problem(300, 420);
      of_call.change = change;
      of_call.dropout = dropout;
      const Mask mask = masks::sliding_window(300, 420, 130);
      TangentCall call(of_call, check::Sinks::of_rows);
      run(PlanInMemory(mask, of_call, options()).plan, call);
      expect_accurate(mask, of_call, call, change.text() + " " + std::to_string(dropout));
    }
  }
}

TEST_P(CudaTangents, PadSmallerHeads) {
  Problem of_call = problem(200, 333);
  of_call.head_dim -= 24;
  of_call.value_dim -= 8;
  const Mask mask = masks::causal(200, 333);
  TangentCall call(of_call);
  run(PlanInMemory(mask, of_call, options()).plan, call);
  expect_accurate(mask, of_call, call, "padded");
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaTangents,
                         testing::Combine(testing::Values(DType::bf16, DType::f16),
                                          testing::Values<std::int64_t>(64, 96, 128)),
                         [](const auto& one) {
                           return to_string(std::get<0>(one.param)) + "_" + std::to_string(std::get<1>(one.param));
                         });

TEST(CudaTangentsAreRefused, WhereNoKernelHasThem) {
  const Problem of_call = problem_for(DType::bf16, 192, 64, 64);
  const Mask mask = masks::causal(64, 64);
  TangentCall call(of_call);
  try {
    run(PlanInMemory(mask, of_call, options(MaskForm::intervals)).plan, call);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_NE(std::string(error.what()).find("has no tangents"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashmask
