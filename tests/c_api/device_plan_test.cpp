// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "c_api/handles.h"

// What can be said of plans for a GPU where there is none; tests/cuda runs them.
namespace flashmask::c_api {
namespace {

constexpr std::int64_t kTokens = 64;
const flashmask_problem kOnDevice = [] {
  flashmask_problem problem = make_problem(1, kTokens, kTokens, 2, 1, 64, 64);
  problem.dtype = FLASHMASK_BF16;
  problem.device_type = FLASHMASK_CUDA;
  return problem;
}();

const std::vector<std::int32_t>& row_indices() {
  static const std::vector<std::int32_t> values(kTokens, kTokens);
  return values;
}

flashmask_device_mask device_mask() {
  flashmask_device_mask mask = FLASHMASK_INIT(flashmask_device_mask);
  mask.kind = FLASHMASK_DEVICE_ROW_INDICES;
  mask.vectors = 1;
  mask.causal = 1;
  mask.shape = {1, 1, kTokens, kTokens};
  mask.data = row_indices().data();
  return mask;
}

TEST(DevicePlan, NeedsAProblemOnADevice) {
  const MaskHandle mask = make(flashmask_mask_causal, kTokens, kTokens);
  const flashmask_device_mask there = device_mask();
  flashmask_problem problem = kOnDevice;
  problem.device_type = FLASHMASK_CPU;
  std::size_t bytes = 7;
  expect_refused(flashmask_plan_bytes(mask.get(), &problem, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "the problem is on cpu");
  expect_refused(flashmask_device_mask_plan_bytes(&there, &problem, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "the problem is on cpu");
  EXPECT_EQ(bytes, 7U);
}

TEST(DevicePlan, IsRefusedWhereTheHostPlans) {
  const MaskHandle mask = make(flashmask_mask_causal, kTokens, kTokens);
  flashmask_plan* plan = nullptr;
  EXPECT_NE(flashmask_plan_create(mask.get(), &kOnDevice, nullptr, &plan), FLASHMASK_OK);
  EXPECT_EQ(plan, nullptr);
}

TEST(DevicePlan, RefusesWhatNoKernelThereServes) {
  const MaskHandle mask = make(flashmask_mask_causal, kTokens, kTokens);
  flashmask_problem problem = kOnDevice;
  problem.dtype = FLASHMASK_F32;
  std::size_t bytes = 0;
  expect_refused(flashmask_plan_bytes(mask.get(), &problem, nullptr, &bytes), FLASHMASK_UNSUPPORTED, "on cuda:0");
}

TEST(DevicePlan, RefusesAMaskOfUnknownKind) {
  flashmask_device_mask mask = device_mask();
  mask.kind = 9;
  std::size_t bytes = 0;
  expect_refused(flashmask_device_mask_plan_bytes(&mask, &kOnDevice, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "mask.kind is 9");
}

TEST(DevicePlan, RefusesNull) {
  const MaskHandle mask = make(flashmask_mask_causal, kTokens, kTokens);
  flashmask_device_mask there = device_mask();
  const flashmask_plan_place place = FLASHMASK_INIT(flashmask_plan_place);
  flashmask_plan* plan = nullptr;
  std::size_t bytes = 0;
  expect_refused(flashmask_plan_bytes(nullptr, &kOnDevice, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "mask is NULL");
  expect_refused(flashmask_plan_bytes(mask.get(), nullptr, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "problem is NULL");
  expect_refused(flashmask_plan_bytes(mask.get(), &kOnDevice, nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "bytes is NULL");
  expect_refused(flashmask_plan_create_at(mask.get(), &kOnDevice, nullptr, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "place is NULL");
  expect_refused(flashmask_plan_create_at(mask.get(), &kOnDevice, nullptr, &place, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "plan is NULL");
  expect_refused(flashmask_device_mask_plan_create(&there, &kOnDevice, nullptr, nullptr, &plan),
                 FLASHMASK_INVALID_ARGUMENT, "place is NULL");
  expect_refused(flashmask_device_mask_plan_bytes(nullptr, &kOnDevice, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "mask is NULL");
  there.data = nullptr;
  expect_refused(flashmask_device_mask_plan_bytes(&there, &kOnDevice, nullptr, &bytes), FLASHMASK_INVALID_ARGUMENT,
                 "mask.data is NULL");
  expect_refused(flashmask_stream_capture(0, nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT, "capture is NULL");
}

TEST(StreamCapture, SaysWhichDevicesThereAre) {
  std::uint64_t capture = 7;
  EXPECT_NE(flashmask_stream_capture(1000, nullptr, &capture), FLASHMASK_OK);
  EXPECT_NE(std::string(flashmask_last_error()).find("CUDA"), std::string::npos) << flashmask_last_error();
  EXPECT_EQ(capture, 7U);
}

}  // namespace
}  // namespace flashmask::c_api
