// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cuda/compile/nvrtc.h"
#include "cuda/kernels_under_test.h"
#include "cuda/runtime/status.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "kit/device_memory.h"
#include "kit/kernel_check.h"
#include "kit/placed_attention.h"

/// Kernels that are compiled for changes of scores. `flashmask check` holds them against the reference too, as all
/// kernels, under chains that the library has no instance for.
namespace flashmask {
namespace {

/// Takes an empty cache while it lives.
class CompiledChanges : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string refusal = cuda::compile::nvrtc_refusal(); !refusal.empty()) GTEST_SKIP() << refusal;
    std::string folder = (std::filesystem::temp_directory_path() / "flashmask-XXXXXX").string();
    folder_ = mkdtemp(folder.data());
    setenv("FLASHMASK_CACHE", (folder_ / "kernels").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("FLASHMASK_CACHE");
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  static Problem problem(const char* change, std::int64_t head_dim) {
    Problem problem{.batch = 1,
                    .query_length = 100,
                    .key_length = 130,
                    .query_heads = 2,
                    .kv_heads = 1,
                    .head_dim = head_dim,
                    .value_dim = head_dim,
                    .dtype = DType::bf16,
                    .device = {DeviceType::cuda, 0}};
    problem.change = ScoreChange::parse(change);
    return problem;
  }

  std::ptrdiff_t kernels_on_disk() const {
    std::ptrdiff_t kernels = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "kernels"))
      kernels += entry.path().extension() == ".kernel";
    return kernels;
  }

  std::filesystem::path folder_;
};

TEST_F(CompiledChanges, AreKeptOnDiskOncePerKernel) {
  const Mask mask = masks::causal(100, 130);
  const check::PlacedPlan first(mask, problem("softcap(7) | multiply(2) | softcap(5)", 64));
  const std::ptrdiff_t made = kernels_on_disk();
  EXPECT_TRUE(made >= 2 && made <= 4) << made
                                      << ": the forward's and the backward's, of which Hopper may try two shapes";
  const check::PlacedPlan other_numbers(mask, problem("softcap(9) | multiply(3) | softcap(4)", 64));
  EXPECT_EQ(kernels_on_disk(), made);
}

TEST_F(CompiledChanges, AreNotMadeWhileAGraphIsCaptured) {
  const Mask mask = masks::causal(100, 130);
  const Problem of = problem("softcap(7) | multiply(2) | softcap(5) | multiply(3)", 64);
  const check::DeviceMemory memory(plan_bytes(mask, of, {}));
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::string said;
  try {
    plan(mask, of, PlanPlace{stream, memory.data(), memory.bytes()}, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    said = error.what();
  }
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  EXPECT_NE(said.find("no compiled kernel yet, which cannot be made while a CUDA graph is captured"), std::string::npos)
      << said;
}

/// Chains of every step, at every head dim, with and without dropout: those that kernel_check.cpp takes in turn.
TEST_F(CompiledChanges, AreRight) {
  check::CheckRequest request;
  request.kernel = "sm";
  request.device = Device{DeviceType::cuda, 0};
  request.quick = true;
  for (const check::KernelVerdict& verdict : check::check_kernels(request))
    EXPECT_TRUE(verdict.passes()) << verdict.kernel << ": " << verdict.worst << " times the bound, " << verdict.where;
}

/// Of which most plans have no need.
TEST_F(CompiledChanges, HaveAKernelForTheGradientOfABiasOnceACallAsksForIt) {
  const Problem of = problem("bias | multiply(3) | softcap(5)", 64);
  check::PlacedPlan placed(masks::causal(100, 130), of);
  check::AttentionTensors tensors(of, 3);
  const check::PlacedTensors on_device(tensors, of.device);
  placed.forward(on_device.forward());
  BackwardTensors backward = on_device.backward();
  backward.grad_bias = {};
  placed.backward(backward);
  EXPECT_EQ(kernels_on_disk(), 2);
  placed.backward(on_device.backward());
  placed.backward(on_device.backward());
  EXPECT_EQ(kernels_on_disk(), 3);
}

}  // namespace
}  // namespace flashmask
