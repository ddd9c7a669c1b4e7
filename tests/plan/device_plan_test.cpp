#include "flashmask/device_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "flashmask/kernels.h"
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

TEST(DevicePlan, RefusesWhatNoKernelThereServes) {
  Problem dropping = problem_on(DeviceType::cuda);
  dropping.dropout = 0.5;
  EXPECT_NE(refusal(
                [&] {
                  plan_bytes({1, 1, 64, 64}, dropping);
                },
                Status::unsupported)
                .find("dropout"),
            std::string::npos);
  Problem wide = problem_on(DeviceType::cuda);
  wide.dtype = DType::f32;
  EXPECT_NE(refusal([&] { plan_bytes({1, 1, 64, 64}, wide); }, Status::unsupported).find("f32"), std::string::npos);
}

TEST(DevicePlan, ChecksRowIndicesBeforeAnythingElse) {
  const std::array<std::int32_t, 3> values{};
  const DeviceRowIndices rows{values.data(), {1, 1, 64, 64}, 3, true};
  EXPECT_NE(refusal([&] { plan(rows, problem_on(DeviceType::cuda), PlanPlace{}); }, Status::invalid_argument)
                .find("vectors is 3"),
            std::string::npos);
}

TEST(DevicePlan, KernelsSayWhyTheyCannotRun) {
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == DeviceType::cuda && !why_not(kernel).empty()) {
      EXPECT_NE(why_not(kernel).find("CUDA device"), std::string::npos) << why_not(kernel);
    }
  }
}

}  // namespace
}  // namespace flashmask
