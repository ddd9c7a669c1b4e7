// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "c_api/handles.h"
#include "cuda/runtime/status.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/startend_row_indices.h"
#include "kit/device_memory.h"

namespace flashmask::c_api {
namespace {

using check::DeviceMemory;

constexpr std::int64_t kTokens = 500, kHeads = 4, kKvHeads = 2, kDim = 64;
const flashmask_problem kProblem = [] {
  flashmask_problem problem = make_problem(1, kTokens, kTokens, kHeads, kKvHeads, kDim, kDim);
  problem.dtype = FLASHMASK_BF16;
  problem.device_type = FLASHMASK_CUDA;
  problem.scale = 0.25F;
  return problem;
}();

flashmask_tensor tensor(const DeviceMemory& memory, std::vector<std::int64_t> shape, std::int32_t dtype) {
  flashmask_tensor made{memory.data(), dtype, FLASHMASK_CUDA, 0, static_cast<std::int32_t>(shape.size()), {}, {}};
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    made.shape[axis] = shape[axis];
    made.strides[axis] = stride;
    stride *= shape[axis];
  }
  return made;
}

/// Heads of bfloat16 numbers between 1 and 2.
DeviceMemory& fill(DeviceMemory& memory, unsigned seed) {
  std::vector<std::uint16_t> values(memory.bytes() / 2);
  for (std::uint16_t& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<std::uint16_t>(0x3f80 | (seed >> 25));
  }
  memory.upload(values.data());
  return memory;
}

class DeviceCalls : public testing::Test {
 protected:
  void SetUp() override {
    fill(q_, 1), fill(k_, 2), fill(v_, 3);
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void TearDown() override { cudaStreamDestroy(stream_); }

  flashmask_forward_tensors tensors() const {
    flashmask_forward_tensors tensors = FLASHMASK_INIT(flashmask_forward_tensors);
    tensors.q = tensor(q_, {1, kTokens, kHeads, kDim}, FLASHMASK_BF16);
    tensors.k = tensor(k_, {1, kTokens, kKvHeads, kDim}, FLASHMASK_BF16);
    tensors.v = tensor(v_, {1, kTokens, kKvHeads, kDim}, FLASHMASK_BF16);
    tensors.o = tensor(o_, {1, kTokens, kHeads, kDim}, FLASHMASK_BF16);
    tensors.lse = tensor(lse_, {1, kHeads, kTokens}, FLASHMASK_F32);
    return tensors;
  }

  /// o of a plan's forward on the test's stream.
  std::vector<std::byte> forward(const flashmask_plan* plan) {
    std::size_t bytes = 0;
    EXPECT_EQ(flashmask_plan_workspace(plan, FLASHMASK_FORWARD, 1, &bytes), FLASHMASK_OK) << flashmask_last_error();
    const DeviceMemory workspace(bytes);
    cuda::check(cudaMemset(o_.data(), 0xff, o_.bytes()), "cudaMemset");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const flashmask_forward_tensors given = tensors();
    flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
    execution.workspace = workspace.data();
    execution.workspace_bytes = workspace.bytes();
    execution.stream = stream_;
    EXPECT_EQ(flashmask_forward(plan, &given, &execution), FLASHMASK_OK) << flashmask_last_error();
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<std::byte> result(o_.bytes());
    o_.download(result.data());
    return result;
  }

  flashmask_plan_place place(const DeviceMemory& memory) const {
    return {sizeof(flashmask_plan_place), stream_, memory.data(), memory.bytes(), 0};
  }

  DeviceMemory q_{kTokens * kHeads * kDim * 2}, k_{kTokens * kKvHeads * kDim * 2}, v_{kTokens * kKvHeads * kDim * 2},
      o_{kTokens * kHeads * kDim * 2}, lse_{kTokens * kHeads * 4};
  cudaStream_t stream_ = nullptr;
};

TEST_F(DeviceCalls, AMaskOfEitherMemoryGivesTheSameBits) {
  const std::vector<std::int64_t> documents{200, 180, 120};
  const MaskHandle mask = make(flashmask_mask_causal_document, documents.data(), std::int64_t{3}, kTokens);
  std::size_t bytes = 0;
  ASSERT_EQ(flashmask_plan_bytes(mask.get(), &kProblem, nullptr, &bytes), FLASHMASK_OK) << flashmask_last_error();
  const DeviceMemory memory(bytes);
  const flashmask_plan_place first = place(memory);
  flashmask_plan* made = nullptr;
  ASSERT_EQ(flashmask_plan_create_at(mask.get(), &kProblem, nullptr, &first, &made), FLASHMASK_OK)
      << flashmask_last_error();
  const PlanHandle of_mask(made);

  const StartEndRowIndices indices =
      to_startend_row_indices(masks::causal_document(documents, kTokens).lowered().intervals());
  DeviceMemory values(indices.values.size() * sizeof(std::int32_t));
  values.upload(indices.values.data());
  flashmask_device_mask there = FLASHMASK_INIT(flashmask_device_mask);
  there.kind = FLASHMASK_DEVICE_ROW_INDICES;
  there.vectors = indices.vectors;
  there.causal = indices.causal ? 1 : 0;
  there.shape = {1, 1, kTokens, kTokens};
  there.data = values.data();
  ASSERT_EQ(flashmask_device_mask_plan_bytes(&there, &kProblem, nullptr, &bytes), FLASHMASK_OK);
  const DeviceMemory other(bytes);
  const flashmask_plan_place second = place(other);
  ASSERT_EQ(flashmask_device_mask_plan_create(&there, &kProblem, nullptr, &second, &made), FLASHMASK_OK)
      << flashmask_last_error();
  const PlanHandle of_rows(made);

  const auto expected = forward(of_mask.get());
  EXPECT_EQ(forward(of_rows.get()), expected);
  EXPECT_NE(expected, std::vector<std::byte>(expected.size(), std::byte{0xff}));
}

TEST_F(DeviceCalls, BooleansAndBitsGiveTheSameBits) {
  std::vector<std::uint8_t> dense(kTokens * kTokens);
  constexpr std::int64_t kRowBytes = (kTokens + 7) / 8;
  std::vector<std::uint8_t> packed(kTokens * kRowBytes);
  for (std::int64_t row = 0; row < kTokens; ++row)
    for (std::int64_t column = 0; column <= row; ++column)
      if ((row * column) % 7 < 3) {
        dense[static_cast<std::size_t>(row * kTokens + column)] = 1;
        packed[static_cast<std::size_t>(row * kRowBytes + column / 8)] |= static_cast<std::uint8_t>(1 << column % 8);
      }
  DeviceMemory booleans(dense.size()), bits(packed.size());
  booleans.upload(dense.data());
  bits.upload(packed.data());
  std::vector<std::vector<std::byte>> results;
  for (const auto& [kind, data] : {std::pair<int, void*>{FLASHMASK_DEVICE_DENSE, booleans.data()},
                                   std::pair<int, void*>{FLASHMASK_DEVICE_PACKED, bits.data()}}) {
    flashmask_device_mask mask = FLASHMASK_INIT(flashmask_device_mask);
    mask.kind = kind;
    mask.shape = {1, 1, kTokens, kTokens};
    mask.data = data;
    mask.strides[2] = kTokens;
    mask.strides[3] = 1;
    std::size_t bytes = 0;
    ASSERT_EQ(flashmask_device_mask_plan_bytes(&mask, &kProblem, nullptr, &bytes), FLASHMASK_OK)
        << flashmask_last_error();
    const DeviceMemory memory(bytes);
    const flashmask_plan_place where = place(memory);
    flashmask_plan* plan = nullptr;
    ASSERT_EQ(flashmask_device_mask_plan_create(&mask, &kProblem, nullptr, &where, &plan), FLASHMASK_OK)
        << flashmask_last_error();
    results.push_back(forward(PlanHandle(plan).get()));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(DeviceCalls, SayTheirCapture) {
  std::uint64_t capture = 7;
  ASSERT_EQ(flashmask_stream_capture(0, stream_, &capture), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(capture, 0U);
  std::uint64_t before = 0;
  for (int turn = 0; turn < 2; ++turn) {
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    EXPECT_EQ(flashmask_stream_capture(0, stream_, &capture), FLASHMASK_OK) << flashmask_last_error();
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphDestroy(graph);
    EXPECT_NE(capture, before);
    before = capture;
  }
  EXPECT_NE(before, 0U);
}

TEST_F(DeviceCalls, RefuseTooLittleMemory) {
  const MaskHandle mask = make(flashmask_mask_causal, kTokens, kTokens);
  const DeviceMemory memory(16);
  const flashmask_plan_place small = place(memory);
  flashmask_plan* plan = nullptr;
  expect_refused(flashmask_plan_create_at(mask.get(), &kProblem, nullptr, &small, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "the memory on the device has 16 bytes");
}

}  // namespace
}  // namespace flashmask::c_api
