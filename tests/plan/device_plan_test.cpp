// SPDX-License-Identifier: Apache-2.0
#include "flashmask/device_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/kernels.h"
#include "flashmask/reorder.h"
#include "plan/device_plan.h"
#include "plan/refusal.h"

// What can be said of plans for a GPU where there is none; tests/cuda runs them.
namespace flashmask {
namespace {

Problem problem_on(DeviceType device) {
  Problem problem;
  problem.query_length = problem.key_length = 64;
  problem.head_dim = problem.value_dim = 64;
  problem.dtype = DType::bf16;
  problem.device = {device, 0};
  return problem;
}

TEST(DevicePlan, NeedsAProblemOnADevice) {
  const std::string message = refusal(
      [] {
        plan_bytes({1, 1, 64, 64}, problem_on(DeviceType::cpu));
      },
      Status::invalid_argument);
  EXPECT_NE(message.find("cpu"), std::string::npos) << message;
}

TEST(DevicePlan, SaysBothWaysOutOfFloat32) {
  Problem wide = problem_on(DeviceType::cuda);
  wide.dtype = DType::f32;
  const std::string message = refusal([&] { plan_bytes({1, 1, 64, 64}, wide); }, Status::unsupported);
  const bool has_kernels =
      std::ranges::any_of(kernels(), [](const KernelInfo& kernel) { return kernel.device == DeviceType::cuda; });
  const std::string advice =
      "kernels on cuda:0 compute bf16 and f16, not f32: cast q, k and v to one of them, or compute on the CPU";
  EXPECT_NE(message.find(has_kernels ? advice : "no kernel of this build runs on cuda:0"), std::string::npos)
      << message;
}

TEST(DevicePlan, ChecksRowIndicesBeforeAnythingElse) {
  const std::array<std::int32_t, 3> values{};
  const DeviceRowIndices rows{values.data(), {1, 1, 64, 64}, 3, true};
  EXPECT_NE(refusal([&] { plan(rows, problem_on(DeviceType::cuda), PlanPlace{}); }, Status::invalid_argument)
                .find("vectors is 3"),
            std::string::npos);
}

TEST(DevicePlan, ReordersNothingUnderDropout) {
  Problem problem = problem_on(DeviceType::cuda);
  problem.dropout = 0.1;
  const Mask mask = masks::causal(64, 64);
  const Reordering order = reorder(mask, {64, 64});
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { plan_bytes(mask, problem, {.reorder = true}); },
           [&] { plan(mask, problem, PlanPlace{}, {.reorder = true}); },
       })
    EXPECT_NE(refusal(call, Status::invalid_argument).find("reorder and dropout"), std::string::npos);
  Reordering gained = order;
  gained.gained = true;
  EXPECT_NE(refusal([&] { plan(gained, problem, PlanPlace{}); }, Status::invalid_argument).find("reorder and dropout"),
            std::string::npos);
}

TEST(DevicePlan, KernelsSayWhyTheyCannotRun) {
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == DeviceType::cuda && !why_not(kernel).empty()) {
      EXPECT_NE(why_not(kernel).find("CUDA device"), std::string::npos) << why_not(kernel);
    }
  }
}

TEST(MapRequests, AreMadeOnceForAllWhoAsk) {
  const TileShape tile{128, 128}, other{64, 128};
  const std::vector<MapRequest> requests = {{.tile = tile, .most_bytes = 100},
                                            {.tile = other, .side = MapSide::columns, .spans = true},
                                            {.tile = tile, .counted = true, .most_bytes = 50},
                                            {.tile = tile, .side = MapSide::columns},
                                            {.tile = other, .side = MapSide::columns, .most_bytes = 10}};
  const std::vector<MapRequest> made = merged(requests);
  ASSERT_EQ(made.size(), 3U);
  EXPECT_TRUE(made[0].is_same_map(requests[0]));
  EXPECT_TRUE(made[0].counted);
  EXPECT_EQ(made[0].most_bytes, 100U);
  EXPECT_TRUE(made[1].is_same_map(requests[1]));
  EXPECT_TRUE(made[1].spans);
  EXPECT_EQ(made[1].most_bytes, 0U) << "one kernel needs it at any size";
  EXPECT_FALSE(made[2].spans || made[2].counted);
}

TEST(MapRequests, AKernelReadsOnlyWhatItAskedFor) {
  DevicePlan plan{};
  plan.maps = {{.tile = {128, 64}, .side = MapSide::rows}};
  EXPECT_EQ(plan.find({128, 64}, MapSide::rows), plan.maps.data());
  EXPECT_EQ(plan.find({128, 64}, MapSide::columns), nullptr);
  EXPECT_THROW(plan.map({64, 64}, MapSide::rows), std::logic_error);
}

}  // namespace
}  // namespace flashmask
