// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/nvrtc.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "cuda/compile/change_text.h"
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
  bool has_kernel = false;
  for (const Source& source : sources()) {
    const std::string_view name = source.name, text = source.text;
    has_kernel |= name == "cuda/sm80/forward/forward_kernel.cuh";
    EXPECT_NE(name, "vector") << "a kernel's header includes what a GPU has not";
    EXPECT_NE(name, "string") << "a kernel's header includes what a GPU has not";
    EXPECT_NE(name, "flashmask/attention.h") << "a kernel's header includes what hosts are told";
    EXPECT_FALSE(text.empty()) << name;
  }
  EXPECT_TRUE(has_kernel);
}

/// A change of scores, and one of its kernels.
struct ChangeAndKernel {
  const char *change, *kernel;
};

class CompiledChange : public testing::TestWithParam<ChangeAndKernel> {
 protected:
  static void SetUpTestSuite() { refusal_ = nvrtc_refusal(); }

  static Code compile(const std::string& change, const std::string& kernel, const std::string& architecture) {
    const ScoreChange parsed = ScoreChange::parse(change);
    return nvrtc().compile({.text = R"(#include "cuda/common/bias_gradient_kernel.cuh"
#include "cuda/sm80/backward/column_kernel.cuh"
#include "cuda/sm80/backward/shapes.cuh"
#include "cuda/sm80/forward/forward_kernel.cuh"
namespace flashmask::cuda {
)" + change_text(parsed, usual_forms(parsed, DType::bf16)) +
                                    "}\n",
                            .kernel = kernel,
                            .architecture = architecture});
  }

  static inline std::string refusal_;
};

#define FLASHMASK_NEEDS_NVRTC() \
  if (!refusal_.empty()) GTEST_SKIP() << refusal_

// As type_name() writes them.
constexpr const char* kForward =
    "flashmask::cuda::sm80::forward_kernel<flashmask::cuda::Changed<flashmask::cuda::sm80::ForwardShape<__nv_bfloat16, "
    "64, 64, 2, (flashmask::cuda::sm80::Queries)1, 3, 128, 4>, flashmask::cuda::Change>>";
constexpr const char* kBackward =
    "flashmask::cuda::sm80::column_kernel<flashmask::cuda::Changed<flashmask::cuda::sm80::ColumnShape<__half, 64, "
    "flashmask::cuda::sm80::LargeForm<64> >, flashmask::cuda::Change>>";
constexpr const char* kBiasGradient =
    "flashmask::cuda::bias_gradient_kernel<flashmask::cuda::Changed<flashmask::cuda::BiasGradientShape<__nv_bfloat16>, "
    "flashmask::cuda::Change>>";

/// A spill costs more than it saves: 16 bytes are what compilers other than those that were tried may need.
TEST_P(CompiledChange, TakesNoMemoryForRegisters) {
  FLASHMASK_NEEDS_NVRTC();
  const Code code = compile(GetParam().change, GetParam().kernel, "sm_80");
  EXPECT_LE(code.spilled, 16);
  EXPECT_TRUE(code.cubin.starts_with("\177ELF"));
  EXPECT_NE(code.cubin.find(code.kernel), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, CompiledChange,
    testing::Values(ChangeAndKernel{"softcap(30) | multiply(-2) | softcap(5)", kBackward},
                    ChangeAndKernel{"alibi | softcap(30)", kForward}, ChangeAndKernel{"bias | softcap(30)", kBackward},
                    ChangeAndKernel{"distance | multiply(0.5)", kForward},
                    ChangeAndKernel{"bias | softcap(30)", kBiasGradient},
                    ChangeAndKernel{"function(mul(mul(score, tanh(score)), distance))", kBiasGradient},
                    ChangeAndKernel{"function(where(eq(at(0, q), at(0, k)), mul(score, at(1, h)), "
                                    "mul(score, 0.5)))",
                                    kForward},
                    ChangeAndKernel{"function(mul(score, distance))", kBackward}));

TEST_F(CompiledChange, SaysWhatACompilerSays) {
  FLASHMASK_NEEDS_NVRTC();
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
