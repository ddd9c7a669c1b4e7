// SPDX-License-Identifier: Apache-2.0
#include "plan/kernel_overview.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "flashmask/linear_attention.h"

namespace flashmask {
namespace {

struct HeadDims {
  std::int64_t head, value;
};

KernelOnMachine kernel(const std::string& arch, Direction direction, DType dtype, HeadDims dims,
                       const std::string& why_not, DeviceType device = DeviceType::cpu) {
  KernelInfo info;
  info.arch = arch;
  info.direction = direction;
  info.dtype = dtype;
  info.device = device;
  info.head_dim = dims.head;
  info.value_dim = dims.value;
  return {info, why_not};
}

TEST(KernelOverview, NamesTheBestKernelsThatRun) {
  EXPECT_EQ(kernel_overview({
                kernel("avx512", Direction::forward, DType::f32, {256, 256}, "no AVX-512"),
                kernel("avx2", Direction::forward, DType::f32, {256, 256}, ""),
                kernel("scalar", Direction::forward, DType::f32, {256, 256}, ""),
            }),
            "device  direction  dtype  kernels  head dims up to  runs here\n"
            "cpu     forward    f32    avx2     256              yes\n");
}

TEST(KernelOverview, SaysOnceWhyNoneRuns) {
  const auto on_gpu = [](HeadDims dims) {
    return kernel("sm90", Direction::backward, DType::bf16, dims, "no GPU", DeviceType::cuda);
  };
  EXPECT_EQ(kernel_overview({on_gpu({64, 64}), on_gpu({128, 128}), on_gpu({192, 128}), on_gpu({64, 64})}),
            "device  direction  dtype  kernels  head dims up to   runs here\n"
            "cuda    backward   bf16   sm90     64, 128, 192v128  no: no GPU\n");
}

TEST(KernelOverview, LeavesOutHeadDimsThatDoNotRun) {
  const std::string text = kernel_overview({
      kernel("sm90", Direction::forward, DType::f16, {64, 64}, "refused", DeviceType::cuda),
      kernel("sm90", Direction::forward, DType::f16, {128, 128}, "", DeviceType::cuda),
  });
  EXPECT_NE(text.find("sm90     128              yes"), std::string::npos) << text;
}

TEST(KernelOverview, NamesEveryFamilyThatRunsOnAGpu) {
  const auto on_gpu = [](const std::string& arch, HeadDims dims, const std::string& why_not) {
    return kernel(arch, Direction::forward, DType::bf16, dims, why_not, DeviceType::cuda);
  };
  EXPECT_EQ(kernel_overview({on_gpu("sm90", {64, 64}, ""), on_gpu("sm80", {64, 64}, ""), on_gpu("sm80", {512, 512}, ""),
                             on_gpu("sm86", {96, 96}, "too little memory")}),
            "device  direction  dtype  kernels  head dims up to  runs here\n"
            "cuda    forward    bf16   sm90     64               yes\n"
            "cuda    forward    bf16   sm80     64, 512          yes\n");
}

TEST(KernelOverview, IsWhatPeopleGet) {
  std::set<std::tuple<DeviceType, Direction, DType>> groups, running;
  std::set<std::tuple<Direction, DType, std::string>> families;  // that run on a GPU, a line each
  for (const KernelInfo& info : kernels()) {
    groups.insert({info.device, info.direction, info.dtype});
    if (info.device != DeviceType::cuda || !why_not(info).empty()) continue;
    running.insert({info.device, info.direction, info.dtype});
    families.insert({info.direction, info.dtype, info.arch});
  }
  const std::string text = describe_kernels();
  std::set<std::tuple<DeviceType, DType>> linear;
  for (const LinearKernelInfo& info : linear_kernels()) linear.insert({info.device, info.dtype});
  const std::ptrdiff_t of_linear = std::ssize(linear) + 2;  // with a blank line and a heading
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n') - 1 - of_linear,
            std::ssize(groups) - std::ssize(running) + std::ssize(families))
      << text;
}

TEST(KernelTable, NamesEachEntryOnceAndListsEveryKindApart) {
  std::set<std::string> names;
  for (const KernelInfo& info : kernels()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(info.name.find(".linear."), std::string::npos) << info.name;
  }
  for (const LinearKernelInfo& info : linear_kernels()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_NE(info.name.find(info.arch + ".linear." + to_string(info.dtype)), std::string::npos) << info.name;
  }
  EXPECT_EQ(names.count("scalar.linear.f32.s64") + names.count("scalar.forward.f32.dany.m64n64.intervals"), 2);
}

TEST(KernelList, HasALineForEachKernelOfAForm) {
  KernelOnMachine runs = kernel("avx2", Direction::forward, DType::f32, {256, 256}, ""), refused = runs, bits = runs;
  runs.info.name = "avx2.forward";
  refused.info.name = "a";
  refused.why_not = "no AVX-512";
  runs.info.tile = refused.info.tile = {64, 128};
  bits.info.predicate = MaskForm::bits;
  EXPECT_EQ(kernel_list({runs, bits, refused}, MaskForm::intervals),
            "kernels for masks as intervals  tile      runs here\n"
            "avx2.forward                    64 x 128  yes\n"
            "a                               64 x 128  no: no AVX-512\n");
}

}  // namespace
}  // namespace flashmask
