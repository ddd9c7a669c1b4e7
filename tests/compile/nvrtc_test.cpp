// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/nvrtc.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "cuda/compile/sources.h"
#include "flashmask/error.h"

/// Kernels compiled at run time, without a GPU.
namespace flashmask::cuda::compile {
namespace {

TEST(Nvrtc, SaysWhereItLookedForACompiler) {
  try {
    const Nvrtc none({"/nonexistent/libnvrtc.so.13", "/nonexistent/libnvrtc.so.12"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_EQ(std::string(error.what()),
              "this change of scores needs a kernel that NVRTC compiles, version 12.5 or newer, which was not found "
              "(searched /nonexistent/libnvrtc.so.13, /nonexistent/libnvrtc.so.12); pip install nvidia-cuda-nvrtc, or "
              "name its file in FLASHMASK_NVRTC");
  }
}

TEST(Nvrtc, LooksOnlyWhereTheEnvironmentSays) {
  const char* const before = std::getenv("FLASHMASK_NVRTC");
  const std::string kept = before == nullptr ? "" : before;
  setenv("FLASHMASK_NVRTC", "/nonexistent", 1);
  EXPECT_EQ(nvrtc_places(), (std::vector<std::string>{"/nonexistent"}));
  setenv("FLASHMASK_NVRTC", "/", 1);
  EXPECT_EQ(nvrtc_places(), (std::vector<std::string>{"//libnvrtc.so.13"}));
  unsetenv("FLASHMASK_NVRTC");
  const std::vector<std::string> places = nvrtc_places();
  EXPECT_NE(std::find(places.begin(), places.end(), "libnvrtc.so.13"), places.end());
  if (before != nullptr) setenv("FLASHMASK_NVRTC", kept.c_str(), 1);
}

/// A library that is another.
TEST(Nvrtc, IsNoOtherLibrary) { EXPECT_THROW(Nvrtc({"libm.so.6"}), Error); }

TEST(Nvrtc, HasTheHeadersOfKernelsAndWhatTheyInclude) {
  int kernels = 0;
  for (const Source& source : sources()) {
    const std::string_view name = source.name, text = source.text;
    kernels += name == "cuda/sm80/forward/forward_kernel.cuh" || name == "cuda/sm90/forward/forward_kernel.cuh";
    EXPECT_NE(name, "vector") << "a kernel's header includes what a GPU has not";
    EXPECT_NE(name, "string") << "a kernel's header includes what a GPU has not";
    EXPECT_NE(name, "flashmask/attention.h") << "a kernel's header includes what hosts are told";
    EXPECT_FALSE(text.empty()) << name;
  }
  EXPECT_EQ(kernels, 2);
}

/// Which plans avoid where they can.
TEST(Nvrtc, SaysWhereProductsRunOneAfterTheOther) {
  if (const std::string refusal = nvrtc_refusal(); !refusal.empty()) GTEST_SKIP() << refusal;
  const Code code = nvrtc().compile({.text = R"(#include "cuda/sm90/instructions/wgmma.h"
__global__ void touched(float* to) {
  using namespace flashmask::cuda::sm90;
  float sums[32] = {};
  const TileDescriptor a(0, 16), b(8192, 16);
  wgmma_fence();
  Products<__nv_bfloat16, 64>::ss<0>(sums, a.at(0), b.at(0), true);
  sums[3] += to[threadIdx.x];
  Products<__nv_bfloat16, 64>::ss<0>(sums, a.at(32), b.at(32), true);
  wgmma_commit();
  wgmma_wait<0>();
  pin(sums);
  for (const float sum : sums) *to++ = sum;
}
)",
                                     .kernel = "touched",
                                     .architecture = "sm_90a"});
  EXPECT_GE(code.spilled, Code::kSerialized);
}

TEST(Nvrtc, SaysWhatACompilerSays) {
  if (const std::string refusal = nvrtc_refusal(); !refusal.empty()) GTEST_SKIP() << refusal;
  try {
    nvrtc().compile({.text = "int x = nothing;", .kernel = "x", .architecture = "sm_80"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::internal);
    EXPECT_NE(std::string(error.what()).find("identifier \"nothing\" is undefined"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashmask::cuda::compile
