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

/// A change of scores, and one of its kernels.
struct ChangeAndKernel {
  const char *change, *kernel;
};

class CompiledChange : public testing::TestWithParam<ChangeAndKernel> {
 protected:
  static void SetUpTestSuite() { refusal_ = nvrtc_refusal(); }

  static Code compile(const ChangeAndKernel& of, const char* headers, const char* architecture,
                      const char* shapes = "") {
    const std::string change = "namespace flashmask::cuda {\n" + change_text(ScoreChange::parse(of.change)) + "}\n";
    return nvrtc().compile({.text = headers + change + shapes, .kernel = of.kernel, .architecture = architecture});
  }

  /// A spill costs more than it saves: 16 bytes are what compilers other than those that were tried may need.
  static void expect_no_spills(const Code& code) {
    EXPECT_LE(code.spilled, 16);
    EXPECT_TRUE(code.cubin.starts_with("\177ELF"));
    EXPECT_NE(code.cubin.find(code.kernel), std::string::npos);
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

TEST_P(CompiledChange, TakesNoMemoryForRegisters) {
  FLASHMASK_NEEDS_NVRTC();
  expect_no_spills(compile(GetParam(), R"(#include "cuda/common/bias_gradient_kernel.cuh"
#include "cuda/sm80/backward/column_kernel.cuh"
#include "cuda/sm80/backward/shapes.cuh"
#include "cuda/sm80/forward/forward_kernel.cuh"
)",
                           "sm_80"));
}

INSTANTIATE_TEST_SUITE_P(
    Steps, CompiledChange,
    testing::Values(ChangeAndKernel{"softcap(30) | multiply(-2) | softcap(5)", kBackward},
                    ChangeAndKernel{"alibi | softcap(30)", kForward}, ChangeAndKernel{"bias | softcap(30)", kBackward},
                    ChangeAndKernel{"distance | multiply(0.5)", kForward},
                    ChangeAndKernel{"bias | softcap(30)", kBiasGradient},
                    ChangeAndKernel{"function(mul(mul(score, tanh(score)), distance))", kBiasGradient}));

class HopperChange : public CompiledChange {
 protected:
  static Code compile(const ChangeAndKernel& of) {
    return CompiledChange::compile(of, R"(#include "cuda/sm90/backward/column_kernel.cuh"
#include "cuda/sm90/forward/forward_kernel.cuh"
)",
                                   "sm_90a", R"(
namespace flashmask::cuda::sm90 {
using T = __nv_bfloat16;
constexpr auto kForm = MaskForm::intervals;
using Settling64 = Changed<ForwardToChange<Forward64<T, kForm>, true>, Change>;
using Looking64 = Changed<ForwardToChange<Forward64<T, kForm>, false>, Change>;
using Settling128 = Changed<ForwardToChange<Forward128<T, kForm>, true>, Change>;
using ByTwos64 = Changed<ColumnsToChange<Columns64<T, kForm>, 2>, Change>;
using ByOnes64 = Changed<ColumnsToChange<Columns64<T, kForm>, 1>, Change>;
using Delayed128 = Changed<Columns128<T, kForm>, Change>;
}
)");
  }
};

/// Nor do its products run one after the other.
TEST_P(HopperChange, TakesNoMemoryForRegisters) {
  FLASHMASK_NEEDS_NVRTC();
  expect_no_spills(compile(GetParam()));
}

constexpr const char *kSquares = "function(mul(score, abs(score)))",
                     *kSilu = "function($0 = tanh(mul(0.5, score)); mul(score, add(0.5, mul(0.5, $0))))",
                     *kCosine = "function(mul(score, add(1, mul(0.1, cos(sub(q, k))))))",
                     *kDocuments = "function(where(eq(at(0, q), at(0, k)), score, sub(score, 10)))",
                     *kCap = "function(mul(30, tanh(div(score, 30))))", *kFactor = "multiply(2) | function(score)";

INSTANTIATE_TEST_SUITE_P(
    Functions, HopperChange,
    testing::Values(
        ChangeAndKernel{kSquares, "flashmask::cuda::sm90::forward_kernel<flashmask::cuda::sm90::Settling64>"},
        ChangeAndKernel{kCosine, "flashmask::cuda::sm90::forward_kernel<flashmask::cuda::sm90::Looking64>"},
        ChangeAndKernel{kFactor, "flashmask::cuda::sm90::forward_kernel<flashmask::cuda::sm90::Settling128>"},
        ChangeAndKernel{kCap, "flashmask::cuda::sm90::forward_kernel<flashmask::cuda::sm90::Settling128>"},
        ChangeAndKernel{kSilu, "flashmask::cuda::sm90::column_kernel<flashmask::cuda::sm90::ByTwos64>"},
        ChangeAndKernel{kCosine, "flashmask::cuda::sm90::column_kernel<flashmask::cuda::sm90::ByOnes64>"},
        ChangeAndKernel{kSquares, "flashmask::cuda::sm90::column_kernel<flashmask::cuda::sm90::Delayed128>"},
        ChangeAndKernel{kDocuments, "flashmask::cuda::sm90::column_kernel<flashmask::cuda::sm90::Delayed128>"}));

/// Which plans avoid where they can.
TEST_F(HopperChange, SaysWhereProductsRunOneAfterTheOther) {
  FLASHMASK_NEEDS_NVRTC();
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
