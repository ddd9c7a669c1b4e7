// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cuda/compile/cache.h"
#include "flashmask/kernels.h"
#include "run_command.h"

/// `flashmask score` and `flashmask cache`.
namespace flashmask::cli {
namespace {

namespace fs = std::filesystem;
using cuda::compile::Cache;

bool built_for_gpus() {
  const std::vector<KernelInfo> all = kernels();
  return std::ranges::any_of(all, [](const KernelInfo& info) { return info.device == DeviceType::cuda; });
}

TEST(ScoreCommand, PrintsWhatAnExpressionComputes) {
  const auto told = command({"score", "mul(score,tanh( mul(score, at(0, h)) ))", "--json", "--no-compile"}).json();
  EXPECT_EQ(told["text"], "function(mul(score, tanh(mul(score, at(0, h)))))");
  EXPECT_EQ(told["slope"],
            "$0 = at(0, h); $1 = tanh(mul(score, $0)); add($1, mul(score, mul(sub(1, mul($1, $1)), $0)))");
  EXPECT_EQ(told["bias_slope"], "");
  EXPECT_EQ(told["depends_on"], nlohmann::json({"score", "h", "operand 0 at 1 index"}));
  ASSERT_GE(told["kernels"].size(), 2U);
  EXPECT_EQ(told["kernels"][0]["device"], "cpu");
  EXPECT_EQ(told["kernels"][0]["how"], "one operation after another");
  EXPECT_NE(std::string(told["kernels"][1]["kernel"]).find(".backward.f32."), std::string::npos);
}

TEST(ScoreCommand, PrintsWhatStepsCompute) {
  const auto told = command({"score", "multiply(3) | bias | softcap(2)", "--json", "--no-compile"}).json();
  EXPECT_EQ(told["text"], "multiply(3) | bias | softcap(2)");
  const char* const slope = "$0 = tanh(div(add(score, bias), 2)); mul(2, mul(sub(1, mul($0, $0)), 0.5))";
  EXPECT_EQ(told["slope"], std::string("3 times ") + slope);
  EXPECT_EQ(told["bias_slope"], slope);
  EXPECT_EQ(told["depends_on"], nlohmann::json({"score", "a bias of each score"}));
  EXPECT_EQ(command({"score", "alibi", "--json"}).json()["slope"], "1");
  const std::string text = command({"score", "softcap(50)"}).out;
  EXPECT_NE(text.find("a part of the kernel"), std::string::npos) << text;
}

/// An architecture is one that this machine need not have.
TEST(ScoreCommand, NamesTheKernelsOfAnArchitecture) {
  for (const char* name : {"sm_80", "sm_89", "sm_90"}) {
    const auto told = command({"score", "mul(score, score)", "--arch", name, "--no-compile", "--json"}).json();
    ASSERT_EQ(told["kernels"].size(), 4U);
    EXPECT_EQ(told["kernels"][2]["device"], name);
    EXPECT_EQ(told["kernels"][2]["how"],
              built_for_gpus() ? "compiled for the change" : "no kernel of this build serves it there");
  }
  EXPECT_NE(command({"score", "score", "--arch", "sm_12"}).err.find("expected one of sm_80, sm_86"), std::string::npos);
}

TEST(ScoreCommand, PointsAtWhatItDoesNotUnderstand) {
  const Outcome refused = command({"score", "mul(score, sort(score))"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("flashmask: score: a function is not understood at character 12: expected a number"),
            std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("\n  mul(score, sort(score))\n             ^\n"), std::string::npos) << refused.err;
  expect_refused({"score"}, "give a change of scores");
  expect_refused({"score", "softcap(50) | nothing"}, "\"nothing\" is no step of a change");
  expect_refused({"score", "score", "--head-dim", "0"}, "--head-dim");
}

class CacheCommand : public testing::Test {
 protected:
  CacheCommand() {
    std::string name = (fs::temp_directory_path() / "flashmask-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    setenv("FLASHMASK_CACHE", folder_.c_str(), 1);
  }
  ~CacheCommand() override {
    unsetenv("FLASHMASK_CACHE");
    fs::remove_all(folder_);
  }

  void put(const std::string& kernel, const std::string& change) const {
    const cuda::compile::Job job{.text = "struct Change {};\n}", .kernel = kernel, .architecture = "sm_90"};
    Cache(folder_).put(cuda::compile::cache_key(job, "13.0, 7 bytes", 1), {"code", "name", 4, change});
  }

  std::string folder_;
};

TEST_F(CacheCommand, ListsKernelsAndRemovesThem) {
  EXPECT_EQ(command({"cache"}).out, folder_ + ": 0 kernels\n");
  put("flashmask::cuda::sm80::forward_kernel<F>", "bias | softcap(3)");
  put("flashmask::cuda::sm80::column_kernel<F>", "function(mul(score, score))");
  const std::string text = command({"cache"}).out;
  EXPECT_EQ(text.find(folder_ + ": 2 kernels\n"), 0U) << text;
  for (const char* part : {"sm80::forward_kernel  sm_90  ", "  bias | softcap(3)\n", "function(mul(score, score))"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  const auto told = command({"cache", "--json"}).json();
  EXPECT_EQ(told["folder"], folder_);
  ASSERT_EQ(told["kernels"].size(), 2U);
  for (const auto& kernel : told["kernels"]) {
    EXPECT_EQ(kernel["compiler"], "13.0, 7 bytes");
    EXPECT_EQ(kernel["code"], "struct Change {};\n");
    EXPECT_EQ(kernel["spilled_bytes"], 4);
  }
  EXPECT_EQ(command({"cache", "--clear"}).out, "removed 2 kernels\n");
  EXPECT_EQ(command({"cache"}).out, folder_ + ": 0 kernels\n");
}

TEST_F(CacheCommand, SaysWhyNothingIsKept) {
  fs::permissions(folder_, fs::perms::others_read, fs::perm_options::add);
  EXPECT_EQ(command({"cache"}).out,
            folder_ + ": no kernels are kept: others may enter it, and code of others is not run: chmod 700\n");
  setenv("FLASHMASK_CACHE", (folder_ + "/none").c_str(), 1);
  EXPECT_EQ(command({"cache"}).out, folder_ + "/none: 0 kernels\n");
  EXPECT_FALSE(fs::exists(folder_ + "/none"));
}

}  // namespace
}  // namespace flashmask::cli
